"""The xgrammar back end: what it allows and forces, and what it refuses instead of dropping it."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import get_args

import jsonschema
import numpy as np
import pytest
from tokenizers import Tokenizer

from tests.engine.conftest import MakeEngine
from tokenloom_engine.constraints.backends import load_backend
from tokenloom_engine.constraints.backends.xgrammar.tokenizer import XgrammarTokenizer
from tokenloom_engine.constraints.base import (
    Constraint,
    ConstraintBackend,
    InvalidConstraintError,
    TokenizerFacts,
)
from tokenloom_engine.constraints.config import ConstraintConfig
from tokenloom_engine.constraints.factory import ConstraintFactory
from tokenloom_engine.constraints.spec import ConstraintKind, ConstraintSpec
from tokenloom_engine.errors import LoadError

VOCAB_SIZE = 49152
EOS_IDS = (0, 2)
NUM_SPECIAL = 17
PERSON = json.dumps(
    {
        "type": "object",
        "properties": {"full_name": {"type": "string"}, "age": {"type": "integer"}},
        "required": ["full_name", "age"],
        "additionalProperties": False,
    }
)
CALL = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


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
        (ConstraintSpec("regex", r"[a-z]+\.(com|org)"), "abc.org", "abcXorg"),
        (ConstraintSpec("regex", "^a.$|^b$"), "ax", "a\n"),
        (ConstraintSpec("choice", '["red", "a\\"\\\\\\n\u00e9\U0001f600"]'), 'a"\\\né😀', "re"),
        (ConstraintSpec("grammar", 'root ::= "a" | "b" root'), "bba", "bb"),
        (ConstraintSpec("grammar", 'start: "a" | "b" start'), "bba", "bb"),
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


@pytest.mark.parametrize(
    "value",
    [
        {
            "structures": [{"begin": "<f>", "schema": CALL, "end": "</f>"}],
            "triggers": ["<f"],
        },
        {
            "type": "structural_tag",
            "format": {
                "type": "triggered_tags",
                "triggers": ["<f"],
                "tags": [
                    {
                        "type": "tag",
                        "begin": "<f>",
                        "content": {"type": "json_schema", "json_schema": CALL},
                        "end": "</f>",
                    }
                ],
            },
        },
    ],
    ids=["older form", "format"],
)
def test_structural_tags(
    backend: ConstraintBackend, tokenizer: Tokenizer, value: dict[str, object]
) -> None:
    texts = Texts(backend, tokenizer, ConstraintSpec("structural_tag", json.dumps(value)))
    assert 'hi <f>{"a":1}</f> and <f>{"a":2}</f>' in texts
    assert "<g>" in texts
    assert '<f>{"a": 1}</f>' not in texts, "compact, like all JSON"
    assert '<f>{"a":"x"}</f>' not in texts


def test_formats_of_structural_tags(backend: ConstraintBackend, tokenizer: Tokenizer) -> None:
    elements = [
        {"type": "const_string", "value": "A:"},
        {"type": "optional", "content": {"type": "regex", "pattern": "^[0-9]{2}$"}},
        {
            "type": "or",
            "elements": [
                {"type": "grammar", "grammar": 'start: "p" | "q" start'},
                {"type": "grammar", "grammar": 'root ::= "r"'},
                {"type": "json_schema", "json_schema": {"type": "string", "maxLength": 1}},
            ],
        },
    ]
    value = {"format": {"type": "sequence", "elements": elements}}
    spec = ConstraintSpec("structural_tag", json.dumps(value), prefix="so ")
    texts = Texts(backend, tokenizer, spec)
    for text in ("so A:12qqp", "so A:r", 'so A:"x"'):
        assert text in texts
    for text in ("A:r", "so A:1r", 'so A:"xy"', 'so A:"\t"'):
        assert text not in texts


def test_a_prefix_stands_before_the_rest(backend: ConstraintBackend, tokenizer: Tokenizer) -> None:
    for spec, text in (
        (ConstraintSpec("regex", "://[a-z]+", prefix=" http"), " http://x"),
        (ConstraintSpec("json_object", prefix='"\\'), '"\\{}'),
        (ConstraintSpec("text", prefix=" http"), " https"),
        (ConstraintSpec("grammar", 'start: "a"', prefix="é"), "éa"),
    ):
        texts = Texts(backend, tokenizer, spec)
        assert text in texts
        assert text.removeprefix(spec.prefix) not in texts


def test_special_tokens_are_no_text(backend: ConstraintBackend) -> None:
    for spec in (ConstraintSpec("regex", r"(.|\n)*"), ConstraintSpec("text")):
        allowed = _allowed(backend, backend.create(spec))
        assert allowed & set(range(NUM_SPECIAL)) == set(EOS_IDS)
        assert len(allowed) > VOCAB_SIZE - 100, "all but bytes that no text has"


def test_ends_before_an_eos_token_is_seen(backend: ConstraintBackend, tokenizer: Tokenizer) -> None:
    texts = Texts(backend, tokenizer, ConstraintSpec("regex", "ya?|n"))
    assert not texts.at("").is_accepting
    open_end = texts.at("y")
    assert (open_end.is_accepting, open_end.is_terminated) == (True, False)
    end = texts.at("ya")
    assert (end.is_accepting, end.is_terminated) == (True, True)
    assert _allowed(backend, end) == set(EOS_IDS)


def test_every_eos_token_ends_and_can_be_taken_back(
    backend: ConstraintBackend, tokenizer: Tokenizer
) -> None:
    texts = Texts(backend, tokenizer, ConstraintSpec("regex", "ya?"))
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
    constraint = Texts(backend, tokenizer, ConstraintSpec("regex", "abc+")).at("zzz")
    assert constraint.error
    assert not constraint.accept_tokens(tokenizer.encode("abc").ids)


def test_state_goes_back_and_is_never_shared(
    backend: ConstraintBackend, tokenizer: Tokenizer
) -> None:
    texts = Texts(backend, tokenizer, ConstraintSpec("regex", "(x y )*z"))
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


@pytest.mark.parametrize(
    ("spec", "text", "least_forced"),
    [
        (ConstraintSpec("json_schema", PERSON), '{"full_name":"Ann","age":12}', 2),
        (ConstraintSpec("choice", '["It is a yes", "It is a no"]'), "It is a no", 2),
        (ConstraintSpec("choice", '["hello world, it is me"]'), "hello world, it is me", 6),
        (ConstraintSpec("choice", '["it\'ll do", "it\'s fine"]'), "it's fine", 1),
        (ConstraintSpec("regex", r"(a|b) the end\."), "b the end.", 3),
        (ConstraintSpec("regex", "cares?|caress"), "cares", 0),
        (ConstraintSpec("grammar", 'start: "x1" /[0-9]+/ " \\n" "\\n"'), "x1234 \n\n", 0),
    ],
)
def test_forced_tokens_are_the_tokenizers_own(
    backend: ConstraintBackend,
    tokenizer: Tokenizer,
    spec: ConstraintSpec,
    text: str,
    least_forced: int,
) -> None:
    """Walked with them, or token by token, a text has the same tokens."""
    canonical = tokenizer.encode(text, add_special_tokens=False).ids
    constraint = backend.create(spec)
    walked: list[int] = []
    num_forced = 0
    while len(walked) < len(canonical):
        forced = constraint.forced_tokens()
        num_forced += len(forced)
        tokens = forced or [canonical[len(walked)]]
        walked += tokens
        assert constraint.accept_tokens(tokens)
        assert walked == canonical[: len(walked)]
    assert num_forced >= least_forced
    assert constraint.is_accepting


def test_a_long_forced_text_is_looked_for_once(
    backend: ConstraintBackend, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each search takes time by the length of the text, and each step asks."""
    searches: list[str] = []
    tokens_of = XgrammarTokenizer.tokens_of

    def count(self: XgrammarTokenizer, text: str, *, is_last: bool) -> list[int]:
        searches.append(text)
        return tokens_of(self, text, is_last=is_last)

    monkeypatch.setattr(XgrammarTokenizer, "tokens_of", count)
    text = "the quick brown fox " * 30
    constraint = backend.create(ConstraintSpec("regex", text))
    ids: list[int] = []
    while not constraint.is_terminated:
        forced = constraint.forced_tokens()
        assert constraint.accept_tokens(forced[:1])
        ids += forced[:1]
    assert tokenizer.decode(ids) == text
    assert len(ids) > 100 and len(searches) <= 3
    constraint.rollback(2)
    assert constraint.forced_tokens() == ids[-2:]
    constraint.reset()
    assert constraint.forced_tokens()[:9] == ids[:9]


def test_forced_tokens_respect_a_budget(backend: ConstraintBackend, tokenizer: Tokenizer) -> None:
    grammar = 'start: a " over"\na[max_tokens=2]: "one two three four five" | "one"'
    constraint = backend.create(ConstraintSpec("grammar", grammar))
    for _ in range(10):
        if not (forced := constraint.forced_tokens()):
            break
        assert constraint.accept_tokens(forced)
    assert constraint.error is None


@pytest.mark.parametrize(
    "spec",
    [
        ConstraintSpec("grammar", 'root ::= "a" root'),
        ConstraintSpec("grammar", 'root ::= "x" | "b" a\na ::= "a" a'),
        ConstraintSpec("grammar", 'root ::= "a"{100000000}'),
        ConstraintSpec("grammar", "start: /a{100000000}/"),
        ConstraintSpec(
            "json_schema",
            '{"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"], '
            '"additionalProperties": false}',
        ),
    ],
    ids=lambda spec: spec.value[:20],
)
def test_text_that_is_forced_without_end_is_not_looked_for(
    backend: ConstraintBackend, spec: ConstraintSpec
) -> None:
    try:
        constraint = backend.create(spec)
    except InvalidConstraintError:
        return
    assert constraint.forced_tokens() == []
    assert _allowed(backend, constraint)


def test_captures_and_temperature(backend: ConstraintBackend, tokenizer: Tokenizer) -> None:
    grammar = (
        "start: word number\n"
        "word[capture]: /[a-z]+ /\n"
        'number[capture="digits", temperature=0.5]: /[0-9]+/'
    )
    texts = Texts(backend, tokenizer, ConstraintSpec("grammar", grammar))
    constraint = texts.at("abc 12")
    assert constraint.captures() == {"word": "abc ", "digits": "12"}
    assert constraint.temperature == 0.5
    assert texts.at("").temperature is None
    repeated = ConstraintSpec("grammar", 'start: (word ",")+\nword[capture]: /[a-z]+/')
    assert Texts(backend, tokenizer, repeated).at("ab,c,").captures() == {"word": ["ab", "c"]}


def test_masks_of_many_are_those_of_each(backend: ConstraintBackend, tokenizer: Tokenizer) -> None:
    specs = [ConstraintSpec("regex", f"[a-z]{{{n}}}x?") for n in range(1, 5)]
    constraints = [backend.create(spec) for spec in specs]
    for constraint in constraints[1:]:
        assert constraint.accept_tokens(tokenizer.encode("a").ids)
    assert constraints[1].accept_tokens([*tokenizer.encode("b").ids, EOS_IDS[0]]), "one has ended"
    rows = [3, 0, 2, 1]
    bitmask = np.full((4, VOCAB_SIZE // 32), -1, dtype=np.int32)
    backend.fill_bitmasks(list(zip(constraints, rows, strict=True)), bitmask)
    for constraint, row in zip(constraints, rows, strict=True):
        assert _ids(bitmask[row]) == _allowed(backend, constraint)


@pytest.mark.parametrize(
    ("schema", "valid", "invalid"),
    [
        (
            {
                "allOf": [
                    {"type": "object", "properties": {"x": {"minimum": 10}}, "required": ["x"]},
                    {"properties": {"y": {"type": "string"}}, "required": ["y"]},
                ]
            },
            ['{"x":10,"y":"a"}'],
            ["42", '{"x":9,"y":"a"}', '{"x":10}'],
        ),
        (
            {
                "type": "object",
                "properties": {"modifier": {"type": "string"}, "id": {"type": "integer"}},
                "additionalProperties": False,
                "anyOf": [{"required": ["modifier"]}, {"required": ["id"]}],
            },
            ['{"id":1}', '{"modifier":"a"}', '{"modifier":"a","id":1}'],
            ["[1]", "{}", '{"id":"a"}'],
        ),
        ({"type": "object", "required": ["a"]}, ['{"a":1}'], ["{}", '{"b":1}']),
        ({"minLength": 2}, ['"ab"', "1"], ['"a"']),
        ({"type": "string", "pattern": "^x(ab*)?$"}, ['"x"', '"xabb"'], ['"xb"']),
        ({"type": "string", "pattern": "^(c|c(c|))$"}, ['"c"', '"cc"'], ['"ccc"']),
        ({"type": "string", "pattern": "b$"}, ['"ab"', '"b"'], ['"ba"', '"a"b"']),
        ({"type": "string", "pattern": '^a"[\\n]$'}, [r'"a\"\n"'], ['"a"\n"', '"a"']),
        ({"type": "string", "pattern": "\u00e9."}, ['"\u00e9x"'], ['"e"', '"\u00e9""']),
        ({"type": "string", "minLength": 1}, ['"a\\n\\"b"'], ['""', '"a\tb"']),
        ({"type": "string", "maxLength": 1}, ['""', '"a"'], ['"ab"', '"\t"', '"""']),
        ({"type": "string", "minLength": 1, "maxLength": 1}, ['"a"'], ['""', '"\t"', '"""']),
        ({"type": "string", "maxLength": 3}, ['"ab\u00e9"'], ['"abcd"', '"a\tb"', '"a\\"']),
        ({"type": "string", "format": "date"}, ['"2024-02-29"'], ['"2023-02-29"', '"2024-04-31"']),
        ({"type": "integer", "minimum": 1.5, "exclusiveMaximum": 4}, ["2", "3"], ["1", "4"]),
        ({"type": ["integer", "string"], "enum": [1, "a", None]}, ["1", '"a"'], ["null", "2"]),
        ({"type": "number", "multipleOf": 2}, ["4", "-2"], ["3", "1.5"]),
        (
            {"type": "array", "items": [{"type": "null"}], "additionalItems": False},
            ["[null]", "[]"],
            ["[null,1]", "[1]"],
        ),
        ({"type": "array", "items": False}, ["[]"], ["[1]"]),
        ({"oneOf": [{"type": "string"}, {"type": "null"}]}, ['"a"', "null"], ["1"]),
        (
            {"type": "object", "properties": {"a": {}}, "patternProperties": {"x": {"const": 1}}},
            ['{"a":2}', '{"ax":1}'],
            ['{"ax":2}', '{"x":"1"}'],
        ),
        (
            {"$ref": "#/$defs/a~1b", "$defs": {"a/b": {"items": {"$ref": "#"}, "type": "array"}}},
            ["[[],[[]]]"],
            ["[1]", "1"],
        ),
        ({"const": {"b": [1, "\u00e9/"], "a": None}}, ['{"b":[1,"\u00e9/"],"a":null}'], ["{}"]),
    ],
)
def test_schemas_are_read_whole(
    backend: ConstraintBackend,
    tokenizer: Tokenizer,
    schema: dict[str, object],
    valid: list[str],
    invalid: list[str],
) -> None:
    spec = ConstraintSpec("json_schema", json.dumps(schema))
    assert backend.validate(spec) == []
    texts = Texts(backend, tokenizer, spec)
    for text in (*valid, *invalid):
        assert _is_valid(schema, text) == (text in valid), "the validator's opinion"
        assert (text in texts) == (text in valid), text


@pytest.mark.parametrize(
    ("schema", "what", "place"),
    [
        ({"not": {"type": "null"}}, "not", "#/not"),
        ({"if": {"type": "null"}, "then": False}, "if", "#/if"),
        ({"dependentRequired": {"a": ["b"]}}, "dependentRequired", "#/dependentRequired"),
        (
            {"properties": {"t~/": {"uniqueItems": True}}},
            "uniqueItems",
            "#/properties/t~0~1/uniqueItems",
        ),
        ({"items": {"contains": {}}}, "contains", "#/items/contains"),
        ({"pattern": "^[a-z]+$", "maxLength": 3}, "maxLength", "#/maxLength"),
        ({"pattern": "a$b"}, "pattern", "#/pattern"),
        ({"pattern": "(?=a)"}, "pattern", "#/pattern"),
        ({"format": "iri"}, "iri", "#/format"),
        ({"type": "number", "multipleOf": 0.1}, "multipleOf", "#/multipleOf"),
        ({"type": "integer", "multipleOf": 2, "minimum": 1}, "multipleOf", "#/multipleOf"),
        ({"oneOf": [{"type": "integer"}, {"minimum": 3}]}, "oneOf", "#/oneOf"),
        ({"allOf": [{"pattern": "a"}, {"pattern": "b"}]}, "allOf", "#/allOf"),
        ({"enum": ["a"], "minLength": 2}, "minLength", "#/minLength"),
        ({"$ref": "http://example.com/schema"}, "ref", "#/$ref"),
        ({"$defs": {"a": {"not": {}}}, "$ref": "#/$defs/a"}, "not", "#/$defs/a/not"),
        (
            {"patternProperties": {"a": {"const": 1}}, "required": ["a"]},
            "pattern",
            "#/patternProperties",
        ),
        (
            {"propertyNames": {"pattern": "a"}, "required": ["b"]},
            "propertyNames",
            "#/propertyNames",
        ),
        ({"const": 2**60}, "53 bits", "#/enum"),
        ({"x-guidance": {"lenient": True}}, "x-guidance", "#/x-guidance"),
    ],
)
def test_what_would_be_dropped_is_refused_unless_that_is_asked(
    backend: ConstraintBackend, schema: dict[str, object], what: str, place: str
) -> None:
    spec = ConstraintSpec("json_schema", json.dumps(schema))
    with pytest.raises(InvalidConstraintError, match=what) as raised:
        backend.validate(spec)
    assert raised.value.place == place
    assert f"(at {place})" in str(raised.value)
    lenient = ConstraintSpec("json_schema", spec.value, lenient=True)
    (warning,) = backend.validate(lenient)
    assert what in warning and warning.endswith(f"(at {place})")
    backend.create(lenient)


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        (ConstraintSpec("json_schema", '{"type": "strng"}'), r"Invalid type: strng \(at #/type\)"),
        (ConstraintSpec("json_schema", '{"anyOf": []}'), "empty"),
        (ConstraintSpec("json_schema", '{"properties": []}'), "wrong type"),
        (ConstraintSpec("json_schema", '{"required": [1]}'), "list of strings"),
        (ConstraintSpec("json_schema", '{"minimum": NaN}'), "NaN"),
        (ConstraintSpec("json_schema", "{"), "JSON"),
        (ConstraintSpec("json_schema", "[]"), "object"),
        (ConstraintSpec("json_schema", "false"), "allows nothing"),
        (ConstraintSpec("json_schema", "[" * 10_000), "deeply"),
        (ConstraintSpec("json_schema", '{"minimum": 3, "maximum": 1, "type": "integer"}'), "range"),
        (
            ConstraintSpec("json_object", whitespace_pattern="[ ]?"),
            "whitespace_pattern.*llguidance",
        ),
        (ConstraintSpec("regex", "a("), "not closed"),
        (ConstraintSpec("regex", "(?=a)b"), "look-around"),
        (ConstraintSpec("regex", r"\Aa"), "not supported"),
        (ConstraintSpec("regex", "a$b"), "alternative"),
        (ConstraintSpec("regex", "foo**"), "two repetitions"),
        (ConstraintSpec("regex", r"[\p{L}]"), "not supported"),
        (ConstraintSpec("regex", "[z-a]"), "no bounds"),
        (ConstraintSpec("regex", "[^\\s\\S]"), "nothing"),
        (ConstraintSpec("choice", "[]"), "at least one"),
        (ConstraintSpec("choice", '["a", 1]'), "strings"),
        (ConstraintSpec("grammar", 'root ::= "a" ('), "line 1"),
        (ConstraintSpec("grammar", "start: missing"), "missing"),
        (ConstraintSpec("grammar", "%llguidance {}\nstart: /a/"), "grammar=llguidance"),
        (ConstraintSpec("grammar", '{"grammars": []}'), "grammar=llguidance"),
        (ConstraintSpec("grammar", "start: /a(?!b)/"), "look-ahead"),
        (
            ConstraintSpec(
                "structural_tag",
                json.dumps(
                    {
                        "structures": [{"begin": "<|im_end|>", "schema": {}, "end": ""}],
                        "triggers": ["<"],
                    }
                ),
            ),
            r"structures\[0\].begin.*special.*llguidance",
        ),
        (
            ConstraintSpec(
                "structural_tag",
                json.dumps({"format": {"type": "json_schema", "json_schema": {"not": {}}}}),
            ),
            r"format.json_schema: not is not supported by xgrammar \(at #/not\)",
        ),
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


@pytest.mark.parametrize(
    "spec",
    [
        ConstraintSpec("json_schema", json.dumps({"enum": [f"value {i}" for i in range(6000)]})),
        ConstraintSpec("choice", json.dumps([f"value {i}" for i in range(6000)])),
        ConstraintSpec("regex", ".{0,100000}"),
        ConstraintSpec("regex", "(a{1,1000}){1,1000}"),
        ConstraintSpec("regex", "|".join(f"value {i}" for i in range(6000))),
        ConstraintSpec("json_schema", json.dumps({"pattern": "((abcde){0,40} ){0,40}"})),
        ConstraintSpec(
            "json_schema", json.dumps({"anyOf": [{"required": [str(i)]} for i in range(2000)]})
        ),
        ConstraintSpec("json_schema", '{"allOf": [{"$ref": "#"}, {"type": "object"}]}'),
        ConstraintSpec("json_schema", '{"$ref": "#"}'),
    ],
    ids=lambda spec: spec.value[:30],
)
def test_what_would_take_minutes_is_refused_at_once(
    backend: ConstraintBackend, spec: ConstraintSpec
) -> None:
    start = time.process_time()
    with pytest.raises(InvalidConstraintError):
        backend.create(spec)
    assert time.process_time() - start < 1


def test_white_space_is_what_the_pattern_says(
    backend: ConstraintBackend, tokenizer: Tokenizer
) -> None:
    schema = json.dumps({"type": "object", "properties": {"a": {"type": "string", "maxLength": 2}}})
    for pattern, most in ((None, 0), (r"[ \n\r\t]?", 1), (r"[\t \r\n]{0,2}", 2), (r"\s*", 9)):
        spec = ConstraintSpec("json_schema", schema, whitespace_pattern=pattern)
        texts = Texts(backend, tokenizer, spec)
        for count in range(4):
            assert (f'{{"a":{" " * count}"b"}}' in texts) == (count <= most)
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
        make_engine(constraints=ConstraintConfig(backends={"regex": "xgrammar"}))
    assert "\n" not in str(raised.value)


def test_all_kinds_can_be_routed_to_it(facts: TokenizerFacts) -> None:
    backends: dict[ConstraintKind, str] = dict.fromkeys(get_args(ConstraintKind), "xgrammar")
    factory = ConstraintFactory(facts, ConstraintConfig(backends=backends))
    try:
        lease = factory.lease(ConstraintSpec("regex", "ab?")).result()
        assert _ids(lease.first_mask.allowed) < set(range(NUM_SPECIAL, VOCAB_SIZE))
        factory.return_constraint(lease.compiled, lease.constraint)
        assert factory.get_constraint(lease.compiled) is lease.constraint
    finally:
        factory.close()


def _is_valid(schema: dict[str, object], text: str) -> bool:
    try:
        instance = json.loads(text)
    except json.JSONDecodeError:
        return False
    checker = jsonschema.Draft201909Validator.FORMAT_CHECKER
    return jsonschema.Draft201909Validator(schema, format_checker=checker).is_valid(instance)


def _allowed(backend: ConstraintBackend, constraint: Constraint) -> set[int]:
    bitmask = np.zeros((1, VOCAB_SIZE // 32), dtype=np.int32)
    backend.fill_bitmasks([(constraint, 0)], bitmask)
    return _ids(bitmask[0])


def _ids(row: np.ndarray) -> set[int]:
    bits = np.unpackbits(row.view(np.uint8), bitorder="little")
    return set(np.flatnonzero(bits).tolist())
