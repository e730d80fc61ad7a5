"""JSON Schemas are enforced exactly, whatever the library makes of strings and numbers."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from typing import Any

import jsonschema
import numpy as np
import pytest
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel

from tokenloom_engine.constraints.base import Constraint, InvalidConstraintError
from tokenloom_engine.constraints.factory import ConstraintFactory
from tokenloom_engine.constraints.masks import CompiledConstraint
from tokenloom_engine.constraints.spec import ConstraintKind, ConstraintSpec

NUM_BYTES = 256
INT64 = (-(2**63), 2**63 - 1)
ID = 1234567890123456789
CONTROLS = re.compile(r"[\x00-\x07\x0b\x0e-\x1f\x7f]")
CLASSES = [
    *('[^"]', r'[^"\\]', r"[^\\/:*?\"<>|]", r'[^,"\n]', r'[^"\x00-\x1f]', "[^&]", r"[\x00-!]"),
    *(r"[\x00-\x1f]", r"\p{Cc}", r"\W", r"\S", ".", r"[^\[\]]", "[ -~]"),
    *("a", r"\\", '"', "/", "[a-c]", r"\d", r"[^\d\"]"),
]
LIMITS = [0, 1, 2**53, 10**18, 2**60, 2**63, 2**64, 123456789012345678]


class Bytes:
    """Constraints over a vocabulary of the 256 bytes."""

    def __init__(self) -> None:
        names = bytes_to_names()
        tokenizer = Tokenizer(BPE({name: byte for byte, name in names.items()}, []))
        tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False, use_regex=False)
        tokenizer.decoder = ByteDecoder()
        tokenizer.add_special_tokens(["<eos>"])
        text = tokenizer.to_str()
        self.factory = ConstraintFactory.for_tokenizer(text, NUM_BYTES + 1, [NUM_BYTES])
        self._bitmask = self.factory.allocate_bitmask(1)

    def compile(self, schema: object, kind: ConstraintKind = "json_schema") -> CompiledConstraint:
        text = schema if isinstance(schema, str) else json.dumps(schema)
        return self.factory.compile(ConstraintSpec(kind, text)).result()

    def allows(self, compiled: CompiledConstraint, text: str) -> bool:
        constraint = self.factory.get_constraint(compiled)
        for byte in [*text.encode(), NUM_BYTES]:
            if constraint.is_terminated:
                return bool(byte == NUM_BYTES)
            if byte not in self._allowed(compiled, constraint):
                return False
            assert constraint.accept_tokens([byte])
        return True

    def walk(self, compiled: CompiledConstraint, draw: random.Random) -> bytes | None:
        """A random text, with a bias to what strings are escaped and ended by."""
        constraint = self.factory.get_constraint(compiled)
        text = bytearray()
        while not constraint.is_terminated:
            allowed = self._allowed(compiled, constraint)
            if len(text) > 200 or not allowed:
                return None
            if NUM_BYTES in allowed and (len(allowed) == 1 or draw.random() < 0.3):
                break
            allowed.discard(NUM_BYTES)
            liked = allowed & set(b'"}]' if len(text) > 40 else b'"\\u0/,}]1')
            text.append(draw.choice(sorted(liked if liked and draw.random() < 0.6 else allowed)))
            assert constraint.accept_tokens([text[-1]])
        return bytes(text)

    def _allowed(self, compiled: CompiledConstraint, constraint: Constraint) -> set[int]:
        compiled.backend.fill_bitmasks([(constraint, 0)], self._bitmask)
        bits = np.unpackbits(self._bitmask[0].view(np.uint8), bitorder="little")
        return set(np.flatnonzero(bits).tolist())


def bytes_to_names() -> dict[int, str]:
    """The characters that byte-level tokenizers write bytes as."""
    plain = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = (byte for byte in range(NUM_BYTES) if byte not in plain)
    return {b: chr(b) for b in plain} | {byte: chr(256 + i) for i, byte in enumerate(others)}


@pytest.fixture(scope="module")
def vocabulary() -> Iterator[Bytes]:
    vocabulary = Bytes()
    yield vocabulary
    vocabulary.factory.close()


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        ({"enum": ["a", ID, ID + 1]}, "#/enum"),
        ({"properties": {"id": {"const": ID}}}, "#/properties/id/const"),
        ({"const": {"a": [2**53 + 1]}}, "#/const"),
        ({"const": INT64[0]}, "#/const"),
        ({"const": 2**63}, "#/const"),
        ({"type": "integer", "const": 1e20}, "#/const"),
        (f'{{"const": {2**60}.0}}', "#/const"),
        ({"const": 108179520.28258015}, "#/const"),
        ('{"const": 1e400}', "#/const"),
        ('{"enum": [1e-99999999999999999999]}', "#/enum"),
        ({"type": "integer", "minimum": 0, "maximum": 2**64 - 1}, "#/maximum"),
        ({"type": "integer", "minimum": -(2**70)}, "#/minimum"),
        ({"type": "integer", "exclusiveMinimum": 2**54}, "#/exclusiveMinimum"),
        ({"type": "integer", "minimum": 2**54, "exclusiveMinimum": True}, "#/minimum"),
        ({"type": "integer", "maximum": ID}, "#/maximum"),
        ({"allOf": [{"type": "integer"}, {"minimum": INT64[0]}]}, "#/allOf/1/minimum"),
        ({"type": "number", "maximum": 2**60}, "#/maximum"),
        ({"type": "number", "maximum": 1e30}, "#/maximum"),
        ({"type": "integer", "multipleOf": 2**32 - 5}, "#/multipleOf"),
        ({"type": "number", "multipleOf": 0.07}, "#/multipleOf"),
        ({"allOf": [{"multipleOf": 100000}, {"multipleOf": 70000}]}, "#/allOf/0/multipleOf"),
        ({"$ref": "#/shapes/a", "shapes": {"a": {"const": ID}}}, "#/shapes/a/const"),
        ({"pattern": "[[:alpha:]]"}, "#/pattern"),
        ({"pattern": "[a--c]"}, "#/pattern"),
        ({"pattern": "(?x)[^a] # no"}, "#/pattern"),
        ({"patternProperties": {"[[:alpha:]]": {}}}, "#/patternProperties/[[:alpha:]]"),
        ({"properties": {"a": {"const": "\x1b"}}}, "#/properties/a/const"),
        (
            {"properties": {"\0": {}}, "patternProperties": {"[^a]": {"type": "null"}}},
            "#/patternProperties/[^a]",
        ),
        (
            {"required": ["a"], "x-guidance": {"json_allow_general_unicode_escapes": True}},
            "#/x-guidance/json_allow_general_unicode_escapes",
        ),
    ],
)
def test_what_cannot_be_enforced_is_refused_with_its_place(
    vocabulary: Bytes, schema: object, place: str
) -> None:
    with pytest.raises(InvalidConstraintError) as refused:
        vocabulary.compile(schema)
    assert refused.value.place == place


@pytest.mark.parametrize(
    ("schema", "right", "wrong"),
    [
        ({"enum": [2**53, 10**18, INT64[1]]}, [2**53, 10**18, INT64[1]], [INT64[1] - 1]),
        ('{"const": 0.10000000000000001}', ["0.1"], ["0.10000000000000001"]),
        ({"const": 1.0}, [1], []),
        (
            {"type": "integer", "minimum": INT64[0], "maximum": INT64[1]},
            [INT64[0] + 1024, -1, 0, INT64[1]],
            [INT64[0] - 1, 2**63, 10**19],
        ),
        (
            {"type": ["integer", "null"], "exclusiveMinimum": 0, "exclusiveMaximum": 2**63},
            [1, INT64[1], "null"],
            [0, 2**63],
        ),
        ({"type": "integer", "maximum": 1e18, "minimum": 0}, [10**18], [10**18 + 1]),
        ({"type": "integer", "x-max": {"maximum": 1e30}, "default": 2**64}, [5], []),
        ({"pattern": r'^[^"\\]{1,4}$'}, ['"a/é\\n"', '"\\u001f"'], ['"\\""', '"a\\\\"']),
        ({"pattern": r"^[^\\/:*?\"<>|]+$"}, ['"a.txt"'], ['"a\\"b"', '"a/b"', '"\\u0061"']),
        ({"pattern": r'^[^,"\n]*(,[^,"\n]*)*$'}, ['"a,b"', '""'], ['"a,\\""', '"\\n"']),
        ({"pattern": '^"[^"]*"$'}, [r'"\"a\""'], [r'"\"a\"\""']),
        ({"pattern": r'^(?:[^"]|\x00)$'}, ['"a"'], [r'"\""', r'"\u0022"']),
        ({"pattern": r"^\p{Cc}$"}, [r'"\n"'], [r'"\""', r'"\\"']),
        ({"pattern": r"^\P{L}$"}, ['"1"', r'"\""', r'"\\"'], ['"a"', '"é"']),
        ({"pattern": r"^[^\P{L}]$"}, ['"a"', '"é"'], [r'"\""', r'"\\"', '"1"']),
        ({"pattern": r"^[a&&b]$"}, ['"&"', '"a"'], ['"c"']),
        ({"pattern": r"^[^[\]]$"}, ['"a"'], ['"["', '"]"', '"a]"']),
        ({"pattern": r"^[\[&]$"}, ['"["', '"&"'], ['"a"']),
        ({"type": "string", "maxLength": 1}, ['"🙂"', r'"\n"'], [r'"\ud83d\ude00"', r'"\u0061"']),
        ({"enum": ["é", "/", "🙂"]}, ['"é"', '"/"', '"🙂"'], [r'"\u00e9"', r'"\/"', r'"\uD83D"']),
        ({"enum": ["\x1b"]}, [r'"\u001b"', r'"\u001B"'], [r'"\u001a"']),
        ({"format": "date"}, ['"2024-02-29"'], [r'"2024\u002d02-29"', r'"2024-02-3\u0030"']),
        (
            {"properties": {"a": {"type": "integer"}}, "required": ["a"]},
            ['{"a":1}', '{"a":1,"b":"x"}'],
            [r'{"a":1,"\u0061":"x"}', '{"b":1}', r'{"\u0061":1}'],
        ),
        (
            {"type": "object", "patternProperties": {'^[^"]$': {"type": "integer"}}},
            ['{"a":1}', r'{"\"":"x"}', '{"bc":"x"}'],
            [r'{"a":"x"}', r'{"\u0061":"x"}', r'{"\n":"x"}'],
        ),
        (
            {"properties": {"a": {"const": "\x1b"}}, "additionalProperties": False},
            [r'{"a":"\u001b"}', "{}"],
            [r'{"\u0061":"\u001b"}'],
        ),
        ({"const": {"pattern": "[^a]", "enum": [0.5]}}, ['{"pattern":"[^a]","enum":[0.5]}'], []),
        (r'{"\u0070roperties": {"a": {"type": "null"}}}', ['{"a":null}'], [r'{"\u0061":1}']),
    ],
)
def test_the_standards_texts_are_allowed_and_no_others(
    vocabulary: Bytes, schema: object, right: list[object], wrong: list[object]
) -> None:
    compiled = vocabulary.compile(schema)
    assert [text for text in right if not vocabulary.allows(compiled, str(text))] == []
    assert [text for text in wrong if vocabulary.allows(compiled, str(text))] == []


@pytest.mark.parametrize(
    "grammar",
    [
        'start: "x" %json {"type": "string", "pattern": "^[^\\"]$"}',
        '{"grammars": [{"lark_grammar": "start: \\"x\\" @s"}, '
        '{"name": "s", "json_schema": {"type": "string", "pattern": "^[^\\"]$"}}]}',
    ],
)
def test_schemas_in_grammars_are_enforced_as_well(vocabulary: Bytes, grammar: str) -> None:
    compiled = vocabulary.compile(grammar, "grammar")
    assert vocabulary.allows(compiled, 'x"a"')
    assert not vocabulary.allows(compiled, r'x"\""')
    with pytest.raises(InvalidConstraintError, match="#/const"):
        vocabulary.compile(f'start: %json {{"const": {ID}}}', "grammar")


def test_a_bound_that_is_raised_is_a_warning(vocabulary: Bytes) -> None:
    schema = {"items": {"type": "integer", "minimum": INT64[0]}}
    warnings = vocabulary.factory.validate(ConstraintSpec("json_schema", json.dumps(schema)))
    assert warnings == [
        f"integers below {INT64[0] + 1024} are left out (at #/items/minimum)",
    ]


def test_a_lenient_schema_loses_what_cannot_be_enforced(vocabulary: Bytes) -> None:
    schema = {"properties": {"a": {"type": "integer", "maximum": 2**64}, "b": {"enum": [ID]}}}
    spec = ConstraintSpec("json_schema", json.dumps(schema), lenient=True)
    places = [re.search(r"at (#.*)\)", line) for line in vocabulary.factory.validate(spec)]
    assert [place and place[1] for place in places] == [
        "#/properties/a/maximum",
        "#/properties/b/enum",
    ]


def test_random_texts_of_random_schemas_are_valid(vocabulary: Bytes) -> None:
    draw = random.Random(14)
    validator = jsonschema.validators.extend(  # type: ignore[no-untyped-call]
        jsonschema.Draft202012Validator,
        {"pattern": _pattern, "patternProperties": _named, "additionalProperties": _unnamed},
    )
    count = 0
    for _ in range(150):
        schema = _schema(draw)
        try:
            compiled = vocabulary.compile(schema)
        except InvalidConstraintError:
            continue
        for _ in range(3):
            text = vocabulary.walk(compiled, draw)
            if text is None:
                continue
            value = json.loads(text)
            assert validator(schema).is_valid(value), (schema, text)
            again = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
            if isinstance(value, (str, int)) and not CONTROLS.search(str(value)):
                assert vocabulary.allows(compiled, again), (schema, again)
            count += 1
    assert count > 200


def _schema(draw: random.Random, depth: int = 0) -> dict[str, Any]:
    kind = draw.random()
    if kind < 0.45:
        return {"type": "string", "pattern": _random_pattern(draw)}
    if kind < 0.75 or depth:
        keywords = draw.sample(["minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"], 2)
        number = {key: draw.choice(LIMITS) * draw.choice([1, -1]) for key in keywords}
        return {"type": "integer", **number}
    names = draw.sample(["a", "é", '"', "/", "\\", "b\n"], 2)
    return {
        "type": "object",
        "properties": {name: _schema(draw, depth + 1) for name in names},
        "required": names[:1],
        "patternProperties": {_random_pattern(draw): True},
        "additionalProperties": {"type": "integer"},
    }


def _random_pattern(draw: random.Random) -> str:
    parts = [draw.choice(CLASSES) + draw.choice(["", "", "?", "{1,3}"]) for _ in range(2)]
    return f"^(?:{parts[0]}|{draw.choice(CLASSES)}){parts[1]}$"


def _matches(pattern: str, text: str) -> bool:
    """Whether a pattern of ours does, as ECMA-262 reads it."""
    python = pattern.replace(r"\p{Cc}", r"[\x00-\x1f\x7f-\x9f]")
    return re.search(python[:-1] + r"\Z", text, re.ASCII) is not None


def _pattern(_: Any, pattern: str, value: object, __: object) -> Iterator[Any]:  # noqa: ANN401
    if isinstance(value, str) and not _matches(pattern, value):
        yield jsonschema.ValidationError("pattern")


def _named(validator: Any, schemas: Any, value: object, _: object) -> Iterator[Any]:  # noqa: ANN401
    for name, child in value.items() if isinstance(value, dict) else ():
        for pattern, schema in schemas.items():
            if _matches(pattern, name):
                yield from validator.descend(child, schema)


def _unnamed(validator: Any, schema: Any, value: object, whole: Any) -> Iterator[Any]:  # noqa: ANN401
    for name, child in value.items() if isinstance(value, dict) else ():
        patterns = whole.get("patternProperties", {})
        if name not in whole["properties"] and not any(_matches(p, name) for p in patterns):
            yield from validator.descend(child, schema)
