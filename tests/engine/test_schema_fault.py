"""The place of a fault in a schema: found by taking parts away, within limits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tokenloom_engine.constraints.base import InvalidConstraintError
from tokenloom_engine.constraints.factory import ConstraintFactory
from tokenloom_engine.constraints.schema_fault import MAX_VALIDATIONS, find_fault
from tokenloom_engine.constraints.spec import ConstraintSpec
from tokenloom_engine.constraints.subschema import children, definitions, pointer, walk, without

UNIQUE: dict[str, Any] = {"type": "array", "uniqueItems": True}
WRONG = {"type": "strng"}
FINE = {"type": "integer"}


@pytest.fixture(scope="module")
def factory(tokenizer_file: Path) -> ConstraintFactory:
    return ConstraintFactory.for_tokenizer(tokenizer_file.read_text(), 49152, [2])


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        (WRONG, "#/type"),
        ({"properties": {"a": FINE, "tags": UNIQUE}}, "#/properties/tags/uniqueItems"),
        ({"properties": {"a": UNIQUE, "b": FINE, "c": UNIQUE}}, "#/properties/a/uniqueItems"),
        ({"properties": {"a~b/c": WRONG}}, "#/properties/a~0b~1c/type"),
        ({"patternProperties": {"^a": WRONG}}, "#/patternProperties/^a/type"),
        ({"additionalProperties": {"items": WRONG}}, "#/additionalProperties/items/type"),
        ({"prefixItems": [FINE, WRONG]}, "#/prefixItems/1/type"),
        ({"anyOf": [FINE, {"items": [FINE, {"pattern": "("}]}]}, "#/anyOf/1/items/1/pattern"),
        ({"oneOf": [{"type": "null"}, WRONG]}, "#/oneOf/1/type"),
        ({"allOf": [FINE, {"properties": {"a": WRONG}}]}, "#/allOf/1/properties/a/type"),
        ({"allOf": [{"type": "string"}, FINE]}, "#/allOf"),
        ({"not": WRONG}, "#/not"),
        ({"if": FINE, "then": FINE}, "#/if"),
        ({"items": {"$ref": "#/$defs/a"}, "$defs": {"b": FINE, "a": WRONG}}, "#/$defs/a/type"),
        ({"items": {"$ref": "#/$defs/x"}, "$defs": {"b": FINE}}, "#/items/$ref"),
        ({"definitions": {"a": UNIQUE}, "$ref": "#/definitions/a"}, "#/definitions/a/uniqueItems"),
        ({"properties": {"a": {"enum": 3}}}, "#/properties/a/enum"),
        ({"type": "integer", "minimum": 3, "maximum": 1}, "#/minimum"),
        ({"x-guidance": {"nonsense": 1}}, "#/x-guidance"),
        ({"properties": {f"p{i}": FINE for i in range(600)} | {"z": UNIQUE}}, None),
    ],
)
def test_where_it_is(factory: ConstraintFactory, schema: dict[str, Any], place: str | None) -> None:
    spec = ConstraintSpec("json_schema", json.dumps(schema))
    with pytest.raises(InvalidConstraintError) as refused:
        factory.validate(spec)
    found = factory.find_fault(spec, str(refused.value))
    assert found == (place or "#/properties/z/uniqueItems")


def test_other_kinds_have_no_place(factory: ConstraintFactory) -> None:
    assert factory.find_fault(ConstraintSpec("regex", "("), "unclosed group") is None


@pytest.mark.parametrize("schema", ["{", "[1]", "true", "[" * 5000])
def test_what_is_no_schema_has_no_place(schema: str) -> None:
    assert find_fault(schema, "a reason", lambda _: "a reason") is None


def test_a_reason_that_comes_and_goes_has_no_place() -> None:
    assert find_fault("{}", "a reason", lambda _: "another") is None
    assert find_fault("{}", "a reason", lambda _: None) is None


def test_the_search_ends_with_what_it_knows_by_then() -> None:
    schema: dict[str, Any] = WRONG
    for _ in range(90):
        schema = {"items": schema}
    calls = 0

    def reason_of(text: str) -> str | None:
        nonlocal calls
        calls += 1
        return "wrong" if "strng" in text else None

    wide = {"properties": {"a": schema, "b": {f"k{i}": 0 for i in range(2000)} | WRONG}}
    assert find_fault(json.dumps(schema), "wrong", reason_of) == "#" + "/items" * 90 + "/type"
    calls = 0
    narrow = {"properties": {"b": wide["properties"]["b"]}}
    assert find_fault(json.dumps(narrow), "wrong", reason_of) == "#/properties/b"
    assert calls == MAX_VALIDATIONS


def test_the_parts_of_a_schema() -> None:
    schema = {
        "$defs": {"d": {}},
        "properties": {"p": {}, "q": True},
        "anyOf": [{}, False, {}],
        "items": {},
        "enum": [{}],
        "dependencies": {"a": ["b"], "c": {}},
    }
    assert definitions(schema) == [("$defs", "d")]
    assert children(schema) == [
        ("properties", "p"),
        ("dependencies", "c"),
        ("anyOf", 0),
        ("anyOf", 2),
        ("items",),
    ]
    before = json.dumps(schema)
    assert without(schema, [*definitions(schema), *children(schema)]) == {
        "$defs": {"d": True},
        "properties": {"q": True},
        "anyOf": [False, False, False],
        "enum": [{}],
        "dependencies": {"a": ["b"]},
    }
    assert json.dumps(schema) == before
    assert [pointer(path) for path, _ in walk({"not": {"items": [{}]}})] == [
        "#",
        "#/not",
        "#/not/items/0",
    ]
    assert definitions(3) == children([{}]) == []
    assert list(walk(True)) == []
