"""Keywords of schemas that change nothing, and the patterns in them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tokenloom_engine.constraints.base import InvalidConstraintError
from tokenloom_engine.constraints.factory import ConstraintFactory
from tokenloom_engine.constraints.inert_keywords import without_inert_keywords
from tokenloom_engine.constraints.spec import ConstraintSpec

TEXT: dict[str, Any] = {"type": "string"}
COUNT: dict[str, Any] = {"type": "integer"}
LIST: dict[str, Any] = {"type": "array", "items": COUNT}
OBJECT: dict[str, Any] = {"type": "object", "properties": {"a": COUNT}}


@pytest.fixture(scope="module")
def factory(tokenizer_file: Path) -> ConstraintFactory:
    return ConstraintFactory.for_tokenizer(tokenizer_file.read_text(), 49152, [2])


@pytest.mark.parametrize(
    ("schema", "plain"),
    [
        ({**LIST, "uniqueItems": False}, LIST),
        ({**LIST, "uniqueItems": True, "maxItems": 1}, {**LIST, "maxItems": 1}),
        ({**OBJECT, "propertyNames": TEXT}, OBJECT),
        ({**OBJECT, "propertyNames": {"description": "any", "minLength": 0}}, OBJECT),
        ({**OBJECT, "propertyNames": True}, OBJECT),
        *(({**TEXT, "format": name}, TEXT) for name in ("password", "binary", "byte", "url")),
        ({**COUNT, "format": "int64"}, COUNT),
        ({**TEXT, "maxLength": 10.0, "minLength": 0.0}, {**TEXT, "maxLength": 10, "minLength": 0}),
        ({**LIST, "maxItems": 1e1}, {**LIST, "maxItems": 10}),
        ({**OBJECT, "dependentRequired": {}}, OBJECT),
        ({**OBJECT, "dependentRequired": {"a": []}}, OBJECT),
        ({**OBJECT, "dependentSchemas": {"a": True}}, OBJECT),
        ({**OBJECT, "dependencies": {"a": [], "b": {}}}, OBJECT),
        ({**OBJECT, "unevaluatedProperties": True}, OBJECT),
        ({**LIST, "unevaluatedItems": {}}, LIST),
        ({**OBJECT, "required": ["a"], "minProperties": 1}, {**OBJECT, "required": ["a"]}),
        (
            {**OBJECT, "additionalProperties": False, "maxProperties": 1},
            {**OBJECT, "additionalProperties": False},
        ),
        ({**TEXT, "not": False}, TEXT),
        ({**TEXT, "if": {"const": "a"}}, TEXT),
        ({**TEXT, "then": {"const": "a"}}, TEXT),
        ({**TEXT, "if": {"const": "a"}, "then": True, "else": {}}, TEXT),
        ({**LIST, "contains": COUNT, "minContains": 0}, LIST),
        ({**LIST, "minContains": 2}, LIST),
        ({**TEXT, "$dynamicAnchor": "x"}, TEXT),
        ({"anyOf": [{**LIST, "uniqueItems": False}]}, {"anyOf": [LIST]}),
        ({"$defs": {"a": {**TEXT, "format": "x"}}, **TEXT}, {"$defs": {"a": TEXT}, **TEXT}),
        (True, {}),
    ],
    ids=str,
)
def test_what_changes_nothing_is_taken_out(
    factory: ConstraintFactory, schema: object, plain: object
) -> None:
    assert json.loads(without_inert_keywords(json.dumps(schema))) == plain
    assert factory.validate(ConstraintSpec("json_schema", json.dumps(schema))) == []


@pytest.mark.parametrize(
    "schema",
    [
        {**LIST, "uniqueItems": True},
        {**LIST, "uniqueItems": True, "maxItems": 2},
        {**OBJECT, "propertyNames": {"pattern": "^a"}},
        {**OBJECT, "propertyNames": {"type": "null"}},
        {**TEXT, "format": "json-pointer"},
        {**TEXT, "maxLength": 1.5},
        {**OBJECT, "dependentRequired": {"a": ["b"]}},
        {**OBJECT, "minProperties": 1},
        {**OBJECT, "maxProperties": 0},
        {**OBJECT, "unevaluatedProperties": False},
        {**TEXT, "if": {"const": "a"}, "then": {"maxLength": 1}},
        {**LIST, "contains": COUNT},
        {"const": {"uniqueItems": False, "not": False}},
        {"properties": {"not": TEXT, "format": TEXT}},
        {"enum": [12345678901234567890, 0.1, "\ud83d\ude00"]},
    ],
    ids=str,
)
def test_what_says_something_stays(schema: object) -> None:
    text = json.dumps(schema)
    assert without_inert_keywords(text) == text


@pytest.mark.parametrize("text", ["{", "[" * 10_000, '{"uniqueItems": false, "maximum": 1e}'])
def test_what_is_no_schema_is_left_to_the_back_end(text: str) -> None:
    assert without_inert_keywords(text) == text


def test_a_format_of_the_standard_that_is_not_enforced_is_named(tokenizer_file: Path) -> None:
    factory = ConstraintFactory.for_tokenizer(tokenizer_file.read_text(), 49152, [2])
    spec = ConstraintSpec("json_schema", json.dumps({**TEXT, "format": "iri"}))
    with pytest.raises(InvalidConstraintError, match="Unknown format: iri"):
        factory.validate(spec)
    lenient = ConstraintSpec("json_schema", spec.value, lenient=True)
    assert factory.validate(lenient) == ["Unknown format: iri (at #/format)"]


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({**TEXT, "pattern": "\\"}, r"within an escape, at character 1 \(at #/pattern\)"),
        ({**TEXT, "pattern": "a\\\\\\"}, r"within an escape, at character 4 \(at #/pattern\)"),
        (
            {"patternProperties": {"a\\": {}}},
            r"within an escape, at character 2 \(at #/patternProperties/a\\\)",
        ),
        (False, "no text matches it"),
    ],
    ids=str,
)
def test_what_llguidance_would_serve_by_mistake(
    tokenizer_file: Path, schema: object, reason: str
) -> None:
    factory = ConstraintFactory.for_tokenizer(tokenizer_file.read_text(), 49152, [2])
    for lenient in (False, True):
        spec = ConstraintSpec("json_schema", json.dumps(schema), lenient=lenient)
        with pytest.raises(InvalidConstraintError, match=reason):
            factory.validate(spec)
        with pytest.raises(InvalidConstraintError, match=reason):
            factory.compile(spec).result()


def test_a_lenient_schema_loses_patterns_that_no_automaton_has(tokenizer_file: Path) -> None:
    factory = ConstraintFactory.for_tokenizer(tokenizer_file.read_text(), 49152, [2])
    schema = {
        "properties": {
            "ahead": {**TEXT, "pattern": "^(?!x)y"},
            "word": {**TEXT, "pattern": r"\bx"},
            "again": {**TEXT, "pattern": r"(a)\1"},
            "fine": {**TEXT, "pattern": r"a\\b[(?=]"},
        },
        "patternProperties": {"(?<=a)": COUNT},
    }
    warnings = factory.validate(ConstraintSpec("json_schema", json.dumps(schema), lenient=True))
    places = (
        "/patternProperties/(?<=a)",
        *(f"/properties/{n}/pattern" for n in ["ahead", "word", "again"]),
    )
    assert [warning.rpartition("(at #")[2][:-1] for warning in warnings] == list(places)
    with pytest.raises(InvalidConstraintError, match="look-around"):
        factory.validate(ConstraintSpec("json_schema", json.dumps(schema)))
