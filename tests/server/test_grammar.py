from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import TypeAdapter
from pydantic import ValidationError as ShapeError

from tokenloom_engine.constraints.spec import ConstraintSpec
from tokenloom_router.errors import ValidationError
from tokenloom_server.api.grammar import Grammar

GRAMMARS: TypeAdapter[Grammar] = TypeAdapter(Grammar)
SCHEMA = {"type": "object", "properties": {"b": {"type": "integer"}, "a": {"const": "ü"}}}
TEXT = '{"type":"object","properties":{"b":{"type":"integer"},"a":{"const":"ü"}}}'


def spec(grammar: dict[str, Any]) -> ConstraintSpec:
    return GRAMMARS.validate_python(grammar).to_spec()


@pytest.mark.parametrize(
    ("grammar", "expected"),
    [
        ({"type": "json", "value": SCHEMA}, ConstraintSpec("json_schema", TEXT)),
        ({"type": "json", "value": TEXT}, ConstraintSpec("json_schema", TEXT)),
        ({"type": "json_object", "value": SCHEMA}, ConstraintSpec("json_schema", TEXT)),
        ({"type": "json_object"}, ConstraintSpec("json_object")),
        ({"type": "json_object", "value": None}, ConstraintSpec("json_object")),
        ({"type": "regex", "value": "[0-9]+"}, ConstraintSpec("regex", "[0-9]+")),
        (
            {"type": "json_schema", "value": {"name": "n", "schema": SCHEMA, "strict": False}},
            ConstraintSpec("json_schema", TEXT),
        ),
        ({"type": "json_schema", "value": {"schema": TEXT}}, ConstraintSpec("json_schema", TEXT)),
        (
            {"type": "json", "value": TEXT, "whitespace_pattern": " ?"},
            ConstraintSpec("json_schema", TEXT, whitespace_pattern=" ?"),
        ),
        ({"type": "choice", "value": ["ü", "b"]}, ConstraintSpec("choice", '["ü","b"]')),
        ({"type": "grammar", "value": 'start: "a"'}, ConstraintSpec("grammar", 'start: "a"')),
        (
            {"type": "structural_tag", "value": {"format": {"type": "any_text"}}, "lenient": True},
            ConstraintSpec("structural_tag", '{"format":{"type":"any_text"}}', lenient=True),
        ),
    ],
)
def test_what_each_form_means(grammar: dict[str, Any], expected: ConstraintSpec) -> None:
    assert spec(grammar) == expected


def test_the_order_of_properties_is_kept() -> None:
    value = json.loads(spec({"type": "json", "value": SCHEMA}).value)
    assert list(value["properties"]) == ["b", "a"]


@pytest.mark.parametrize(
    "grammar",
    [
        {"type": "json"},
        {"type": "json", "value": None},
        {"type": "json", "value": 3},
        {"type": "json", "value": [SCHEMA]},
        {"type": "regex", "value": SCHEMA},
        {"type": "json_schema", "value": SCHEMA},
        {"type": "json_schema", "value": {"name": "n"}},
        {"type": "json_schema", "json_schema": {"schema": SCHEMA}},
        {"type": "regex", "value": "a", "flags": "i"},
        {"type": "text"},
        {"type": "choice", "value": []},
        {"type": "choice", "value": "a"},
        {"type": "choice", "value": [1]},
        {"type": "grammar", "value": ["a"]},
        {"type": "regex", "value": "a", "whitespace_pattern": " "},
        {"value": "a"},
    ],
)
def test_forms_that_are_refused(grammar: dict[str, Any]) -> None:
    with pytest.raises(ShapeError):
        GRAMMARS.validate_python(grammar)


def test_a_schema_without_end() -> None:
    schema: dict[str, Any] = {}
    for _ in range(100_000):
        schema = {"not": schema}
    with pytest.raises(ValidationError, match="grammar is not valid: nested too deeply"):
        spec({"type": "json", "value": schema})
