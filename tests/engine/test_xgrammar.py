"""The xgrammar backend: what it allows, and what it refuses instead of ignoring it."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

import jsonschema
import numpy as np
import pytest
from tokenizers import Tokenizer

from tests.engine.conftest import MakeEngine
from tokenloom_engine.constraints.backends import load_backend
from tokenloom_engine.constraints.backends.xgrammar.supported_schema import (
    UNSUPPORTED,
    SupportedSchema,
)
from tokenloom_engine.constraints.base import (
    Constraint,
    ConstraintBackend,
    InvalidConstraintError,
    TokenizerFacts,
)
from tokenloom_engine.constraints.config import ConstraintConfig
from tokenloom_engine.constraints.spec import ConstraintKind, ConstraintSpec
from tokenloom_engine.errors import LoadError

VOCAB_SIZE = 49152
EOS_IDS = (0, 2)
NUM_SPECIAL = 17
UUID = "123e4567-e89b-12d3-a456-426614174000"
PERSON = json.dumps(
    {
        "type": "object",
        "properties": {"full_name": {"type": "string"}, "age": {"type": "integer"}},
        "required": ["full_name", "age"],
        "additionalProperties": False,
    }
)
YES_OR_NO = ConstraintSpec("choice", '["y", "ya", "n"]')


@pytest.fixture(scope="module")
def facts(tokenizer_file: Path) -> TokenizerFacts:
    return TokenizerFacts(
        json=tokenizer_file.read_text(),
        vocab_size=VOCAB_SIZE,
        eos_token_ids=EOS_IDS,
        num_threads=2,
    )


@pytest.fixture(scope="module")
def backend(facts: TokenizerFacts) -> ConstraintBackend:
    return load_backend("xgrammar", facts, ConstraintConfig())


@pytest.fixture(scope="module")
def tokenizer(tokenizer_file: Path) -> Tokenizer:
    return Tokenizer.from_file(str(tokenizer_file))


class Texts:
    """Asks one spec's constraint about texts."""

    def __init__(
        self, backend: ConstraintBackend, tokenizer: Tokenizer, spec: ConstraintSpec
    ) -> None:
        self._backend = backend
        self._tokenizer = tokenizer
        self._spec = spec

    def at(self, text: str) -> Constraint:
        constraint = self._backend.create(self._spec)
        constraint.accept_tokens(self._tokenizer.encode(text, add_special_tokens=False).ids)
        return constraint

    def __contains__(self, text: str) -> bool:
        constraint = self.at(text)
        return constraint.error is None and constraint.is_accepting


@pytest.mark.parametrize(
    ("spec", "allowed", "forbidden"),
    [
        (ConstraintSpec("json_schema", PERSON), '{"full_name":"A","age":3}', '{"full_name": "A"'),
        (ConstraintSpec("json_object"), '{"a":[1,null]}', "[1]"),
        (
            ConstraintSpec("choice", '["red", "a\\"\\\\\\n\u00e9\U0001f600"]'),
            'a"\\\n\u00e9\U0001f600',
            "re",
        ),
        (ConstraintSpec("text"), "all\n\u00e9", "\0<|im_start|>"),
    ],
    ids=lambda value: value.kind if isinstance(value, ConstraintSpec) else None,
)
def test_kinds(
    backend: ConstraintBackend,
    tokenizer: Tokenizer,
    spec: ConstraintSpec,
    allowed: str,
    forbidden: str,
) -> None:
    assert backend.validate(spec) == []
    texts = Texts(backend, tokenizer, spec)
    assert allowed in texts
    assert forbidden not in texts


def test_kinds_that_it_does_not_compile_end_the_start(make_engine: MakeEngine) -> None:
    kinds: list[ConstraintKind] = ["choice", "regex", "structural_tag"]
    config = ConstraintConfig(backends=dict.fromkeys(kinds, "xgrammar"))
    with pytest.raises(LoadError) as raised:
        make_engine(constraints=config)
    assert str(raised.value) == (
        "xgrammar does not compile regex, structural_tag; let llguidance do it: "
        "--constraint-backend regex=llguidance,structural_tag=llguidance"
    )


def test_a_prefix_stands_before_the_rest(backend: ConstraintBackend, tokenizer: Tokenizer) -> None:
    for spec, text in (
        (ConstraintSpec("choice", '["://x"]', prefix=" http"), " http://x"),
        (ConstraintSpec("json_object", prefix='"\\'), '"\\{}'),
        (ConstraintSpec("text", prefix=" http"), " https"),
    ):
        texts = Texts(backend, tokenizer, spec)
        assert text in texts
        assert text.removeprefix(spec.prefix) not in texts


def test_special_tokens_are_no_text(backend: ConstraintBackend) -> None:
    allowed = _allowed(backend, backend.create(ConstraintSpec("text")))
    assert allowed & set(range(NUM_SPECIAL)) == set(EOS_IDS)
    assert len(allowed) > VOCAB_SIZE - 100, "all but bytes that no text has"


def test_ends_before_an_eos_token_is_seen(backend: ConstraintBackend, tokenizer: Tokenizer) -> None:
    texts = Texts(backend, tokenizer, YES_OR_NO)
    assert not texts.at("").is_accepting
    open_end = texts.at("y")
    assert (open_end.is_accepting, open_end.is_terminated) == (True, False)
    end = texts.at("ya")
    assert (end.is_accepting, end.is_terminated) == (True, True)
    assert _allowed(backend, end) == set(EOS_IDS)


def test_every_eos_token_ends_and_can_be_taken_back(
    backend: ConstraintBackend, tokenizer: Tokenizer
) -> None:
    texts = Texts(backend, tokenizer, YES_OR_NO)
    for id in EOS_IDS:
        assert not texts.at("").accept_tokens([id])
        constraint = texts.at("y")
        assert constraint.validate_tokens([id, id]) == 1
        assert constraint.accept_tokens([id])
        assert constraint.is_terminated
        assert constraint.forced_tokens() == []
        assert _allowed(backend, constraint) == set(EOS_IDS)
        constraint.rollback(1)
        assert not constraint.is_terminated
        assert constraint.accept_tokens(tokenizer.encode("a").ids)
        assert constraint.is_terminated


def test_errors_are_sticky(backend: ConstraintBackend, tokenizer: Tokenizer) -> None:
    constraint = Texts(backend, tokenizer, ConstraintSpec("choice", '["abc"]')).at("zzz")
    assert constraint.error
    assert not constraint.accept_tokens(tokenizer.encode("abc").ids)


def test_state_goes_back_and_is_never_shared(
    backend: ConstraintBackend, tokenizer: Tokenizer
) -> None:
    texts = Texts(backend, tokenizer, ConstraintSpec("choice", '["x y x y z", "x y z"]'))
    constraint = texts.at("x y x")
    before = _allowed(backend, constraint)
    twin = constraint.fork()
    assert twin.accept_tokens(tokenizer.encode(" y z").ids)
    assert twin.is_terminated
    assert _allowed(backend, constraint) == before
    twin.rollback(len(tokenizer.encode(" y z").ids))
    assert _allowed(backend, twin) == before
    with pytest.raises(ValueError, match="fewer"):
        twin.rollback(100)
    assert constraint.validate_tokens(tokenizer.encode(" y q").ids) == 1
    assert _allowed(backend, constraint) == before
    constraint.reset()
    assert _allowed(backend, constraint) == _allowed(backend, texts.at(""))
    with pytest.raises(ValueError, match="fewer"):
        constraint.rollback(1)


def test_masks_of_many_are_those_of_each(backend: ConstraintBackend, tokenizer: Tokenizer) -> None:
    specs = [ConstraintSpec("choice", json.dumps(["a", f"ab{n}"])) for n in range(4)]
    constraints = [backend.create(spec) for spec in specs]
    for constraint in constraints[1:]:
        assert constraint.accept_tokens(tokenizer.encode("a").ids)
    assert constraints[1].accept_tokens([EOS_IDS[0]]), "one has ended"
    rows = [3, 0, 2, 1]
    bitmask = np.full((4, VOCAB_SIZE // 32), -1, dtype=np.int32)
    backend.fill_bitmasks(list(zip(constraints, rows, strict=True)), bitmask)
    for constraint, row in zip(constraints, rows, strict=True):
        assert _ids(bitmask[row]) == _allowed(backend, constraint)


@pytest.mark.parametrize(
    ("schema", "valid", "invalid"),
    [
        ({"required": ["a"], "properties": {"a": {"type": "null"}}}, ['{"a":null}'], ["{}", "1"]),
        (
            {"type": "object", "properties": {"a": {"type": "integer"}}},
            ["{}", '{"a":1}'],
            ['{"a":"x"}', r'{"a":1,"\u0061":"x"}', '{"a":1,"a":"x"}'],
        ),
        ({"additionalProperties": {"type": "null"}}, ['{"b":null}'], ['{"b":1}']),
        ({"type": ["integer", "string"], "minimum": 3}, ["3", '"a"'], ["2", "null"]),
        ({"type": "integer", "exclusiveMaximum": 4, "minimum": 2}, ["2", "3"], ["1", "4"]),
        ({"type": "number", "exclusiveMinimum": 0}, ["0.1", "3"], ["0", "0.0", "-1"]),
        ({"type": ["integer", "string"], "enum": [1, "a"]}, ["1", '"a"'], ["null", "2"]),
        (
            {"type": "array", "prefixItems": [{"type": "null"}], "items": False, "minItems": 1},
            ["[null]"],
            ["[null,1]", "[1]", "[]"],
        ),
        ({"items": {"type": "null"}, "maxItems": 1}, ["[]", "[null]"], ["[1]", "[null,null]"]),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, ['"a"', "null"], ["1"]),
        (
            {"$ref": "#/$defs/a~1b", "$defs": {"a/b": {"items": {"$ref": "#"}, "type": "array"}}},
            ["[[],[[]]]"],
            ["[1]", "1"],
        ),
        ({"const": {"b": [1, "\u00e9/"], "a": None}}, ['{"b":[1,"\u00e9/"],"a":null}'], ["{}"]),
        ({"type": "string", "format": "uuid", "title": "An id"}, [f'"{UUID}"'], ['"a"']),
        ({"$defs": {"unused": {"not": {}}}, "type": "null"}, ["null"], ["1"]),
    ],
)
def test_supported_schemas(
    backend: ConstraintBackend,
    tokenizer: Tokenizer,
    schema: dict[str, object],
    valid: list[str],
    invalid: list[str],
) -> None:
    spec = ConstraintSpec("json_schema", json.dumps(schema))
    assert backend.validate(spec) == []
    texts = Texts(backend, tokenizer, spec)
    for text in valid:
        assert _is_valid(schema, text)
        assert text in texts, text
    for text in invalid:
        assert text not in texts, text


@pytest.mark.parametrize(
    ("schema", "what", "place"),
    [
        *(({keyword: {}}, keyword, f"#/{keyword}") for keyword in sorted(UNSUPPORTED)),
        (
            {"properties": {"t~/": {"type": "array", "uniqueItems": True}}},
            "uniqueItems",
            "#/properties/t~0~1/uniqueItems",
        ),
        ({"items": {"contains": {"const": 1}}}, "contains", "#/items/contains"),
        ({"type": "string", "format": "date"}, "format 'date'", "#/format"),
        ({"type": "string", "format": "ipv4"}, "format 'ipv4'", "#/format"),
        ({"type": "string", "minimum": 3}, "minimum", "#/minimum"),
        ({"enum": ["a"], "minimum": 2}, "minimum beside enum", "#/minimum"),
        ({"enum": ["a", 1], "type": "string"}, "type beside enum", "#/type"),
        ({"anyOf": [{}, {"type": "null"}], "type": "null"}, "type beside anyOf", "#/type"),
        ({"$ref": "http://example.com/schema"}, "ref", "#/$ref"),
        ({"$ref": "#/properties/a", "properties": {"a": {}}}, "properties", "#/properties"),
        ({"items": {"$ref": "#/items/items"}}, "ref", "#/items/$ref"),
        ({"$defs": {"a": {"not": {}}}, "$ref": "#/$defs/a"}, "not", "#/$defs/a/not"),
        ({"type": "object", "required": ["a"]}, "required of 'a'", "#/required"),
        (
            {"properties": {"a": {}}, "additionalProperties": {"type": "null"}},
            "additionalProperties beside properties",
            "#/additionalProperties",
        ),
        ({"const": 2**60}, "53 bits", "#/const"),
        ({"enum": [{"a": [2**60]}]}, "53 bits", "#/enum"),
        ({"items": {"$id": "a"}}, "$id", "#/items/$id"),
    ],
)
def test_what_would_be_ignored_is_refused_unless_leaving_it_out_is_asked(
    backend: ConstraintBackend, schema: dict[str, object], what: str, place: str
) -> None:
    with pytest.raises(InvalidConstraintError) as raised:
        SupportedSchema(json.dumps(schema), lenient=False)
    assert what in str(raised.value)
    assert "--constraint-backend json_schema=llguidance" in str(raised.value)
    assert raised.value.place == place
    lenient = ConstraintSpec("json_schema", json.dumps(schema), lenient=True)
    warnings = SupportedSchema(lenient.value, lenient=True).warnings
    assert any(what in warning and warning.endswith(f"(at {place})") for warning in warnings)
    backend.create(lenient)


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        (ConstraintSpec("json_schema", '{"type": "strng"}'), r"Invalid type: strng \(at #/type\)"),
        (ConstraintSpec("json_schema", '{"anyOf": []}'), "empty"),
        (ConstraintSpec("json_schema", '{"enum": 1}'), "wrong type"),
        (ConstraintSpec("json_schema", '{"properties": []}'), "wrong type"),
        (ConstraintSpec("json_schema", '{"properties": {"a": 1}}'), "a schema is"),
        (ConstraintSpec("json_schema", '{"minimum": true}'), "wrong type"),
        (ConstraintSpec("json_schema", '{"$ref": "#/$defs/a"}'), r"nowhere \(at #/\$ref\)"),
        (ConstraintSpec("json_schema", '{"minimum": NaN}'), "NaN"),
        (ConstraintSpec("json_schema", "{"), "JSON"),
        (ConstraintSpec("json_schema", "[]"), "object"),
        (ConstraintSpec("json_schema", "false"), "allows nothing"),
        (ConstraintSpec("json_schema", '{"minimum": 3, "maximum": 1, "type": "integer"}'), "range"),
        (
            ConstraintSpec("json_object", whitespace_pattern="[ ]?"),
            "whitespace_pattern.*llguidance",
        ),
        (ConstraintSpec("choice", "[]"), "at least one"),
        (ConstraintSpec("choice", '["a", 1]'), "strings"),
        (ConstraintSpec("choice", "["), "JSON"),
        (ConstraintSpec("regex", "a"), "regex"),
    ],
)
def test_a_bad_spec_is_refused_with_a_reason(
    backend: ConstraintBackend, spec: ConstraintSpec, reason: str
) -> None:
    with pytest.raises(InvalidConstraintError, match=reason) as raised:
        backend.validate(spec)
    assert ".cc:" not in str(raised.value), "not the library's source"
    with pytest.raises(InvalidConstraintError):
        backend.create(spec)


def test_random_texts_of_supported_schemas_are_valid(
    backend: ConstraintBackend, tokenizer: Tokenizer
) -> None:
    """No text that the masks allow breaks the schema."""
    schema: dict[str, object] = {
        "type": "object",
        "properties": {
            "id": {"type": "integer", "minimum": -3, "maximum": 1200},
            "ratio": {"type": "number", "minimum": 0.25, "exclusiveMaximum": 7.5},
            "tags": {"type": "array", "items": {"enum": ["a", 1, None]}, "maxItems": 3},
            "at": {"anyOf": [{"type": "string", "format": "email"}, {"type": "null"}]},
            "nested": {"$ref": "#/$defs/nested"},
        },
        "required": ["id", "nested"],
        "$defs": {
            "nested": {"type": "object", "additionalProperties": {"type": ["boolean", "null"]}}
        },
    }
    generator = random.Random(0)
    characters = {tokenizer.get_vocab()[chr(code)]: chr(code) for code in range(0x21, 0x7F)}
    for _ in range(20):
        constraint = backend.create(ConstraintSpec("json_schema", json.dumps(schema)))
        text = ""
        while not constraint.is_terminated:
            ids = sorted(_allowed(backend, constraint) & characters.keys())
            id = generator.choice(ids)
            assert constraint.accept_tokens([id])
            text += characters[id]
        assert _is_valid(schema, text), text


@pytest.mark.parametrize(
    ("pattern", "spaces"), [(None, [0]), (r"[ \n\r\t]*", [0, 1, 9]), (r"\s*", [0, 9])]
)
def test_whitespace_is_what_the_pattern_says(
    backend: ConstraintBackend, tokenizer: Tokenizer, pattern: str | None, spaces: list[int]
) -> None:
    schema = json.dumps({"type": "object", "properties": {"a": {"type": "string"}}})
    spec = ConstraintSpec("json_schema", schema, whitespace_pattern=pattern)
    texts = Texts(backend, tokenizer, spec)
    for count in (0, 1, 9):
        assert (f'{{"a":{" " * count}"b"}}' in texts) == (count in spaces or len(spaces) > 1)
    assert '{"a":"\t"}' not in texts, "never within a string"


def test_an_absent_library_is_named_with_the_remedy(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = "tokenloom_engine.constraints.backends.xgrammar"
    for name in [name for name in sys.modules if name.startswith((package, "xgrammar"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "xgrammar", None)
    with pytest.raises(
        LoadError, match=r"xgrammar \(pip install 'tokenloom\[xgrammar\]'\)"
    ) as raised:
        make_engine(constraints=ConstraintConfig(backends={"choice": "xgrammar"}))
    assert "\n" not in str(raised.value)


def _is_valid(schema: dict[str, object], text: str) -> bool:
    try:
        instance = json.loads(text)
    except json.JSONDecodeError:
        return False
    checker = jsonschema.Draft202012Validator.FORMAT_CHECKER
    return jsonschema.Draft202012Validator(schema, format_checker=checker).is_valid(instance)


def _allowed(backend: ConstraintBackend, constraint: Constraint) -> set[int]:
    bitmask = np.zeros((1, VOCAB_SIZE // 32), dtype=np.int32)
    backend.fill_bitmasks([(constraint, 0)], bitmask)
    return _ids(bitmask[0])


def _ids(row: np.ndarray) -> set[int]:
    bits = np.unpackbits(row.view(np.uint8), bitorder="little")
    return set(np.flatnonzero(bits).tolist())
