"""Warnings of a lenient schema, and where what they are about stands."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tokenloom_engine.constraints.factory import ConstraintFactory
from tokenloom_engine.constraints.left_out import with_places
from tokenloom_engine.constraints.spec import ConstraintSpec


@pytest.fixture(scope="module")
def factory(tokenizer_file: Path) -> ConstraintFactory:
    return ConstraintFactory.for_tokenizer(tokenizer_file.read_text(), 49152, [2])


def test_each_keyword_is_named_with_its_places(factory: ConstraintFactory) -> None:
    schema = {
        "properties": {
            "a": {"type": "array", "uniqueItems": True},
            "b": {"type": "array", "uniqueItems": True, "contains": {"type": "null"}},
            "c": {"type": "string", "format": "iri"},
            "d": {"not": {"type": "string"}},
            "e": {"items": {"type": "array", "uniqueItems": True}},
            "f": {"oneOf": [{"type": "string"}, {"type": "string", "maxLength": 3}]},
            "uniqueItems": {"type": "integer"},
        }
    }
    spec = ConstraintSpec("json_schema", json.dumps(schema), lenient=True)
    places = dict(warning.rstrip(")").split(" (at ") for warning in factory.validate(spec))
    one_of = next(warning for warning in places if warning.startswith("oneOf"))
    assert places == {
        'Unimplemented keys: ["uniqueItems"]': "#/properties/a/uniqueItems, "
        "#/properties/e/items/uniqueItems",
        'Unimplemented keys: ["contains", "uniqueItems"]': "#/properties/b/contains, "
        "#/properties/b/uniqueItems",
        "Unknown format: iri": "#/properties/c/format",
        'Unimplemented keys: ["not"]': "#/properties/d/not",
        one_of: "#/properties/f/oneOf",
    }


def test_many_places_are_counted() -> None:
    schema = {"prefixItems": [{"format": "x"}] * 9}
    (warning,) = with_places(json.dumps(schema), ["Unknown format: x"])
    assert warning.endswith("#/prefixItems/4/format and 4 more)")


def test_other_warnings_stay_as_they_are() -> None:
    assert with_places("{}", ["Something else"]) == ["Something else"]
    assert with_places("not even JSON", []) == []
