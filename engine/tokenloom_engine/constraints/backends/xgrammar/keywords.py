"""The keywords of JSON Schema."""

from __future__ import annotations

from collections.abc import Mapping

from tokenloom_engine.constraints.backends.xgrammar.document import TYPES, Json, Schema
from tokenloom_engine.constraints.backends.xgrammar.notes import Notes
from tokenloom_engine.constraints.subschema import Path

OF_OBJECTS = frozenset(
    {
        "properties",
        "required",
        "additionalProperties",
        "patternProperties",
        "propertyNames",
        "unevaluatedProperties",
        "minProperties",
        "maxProperties",
    }
)
OF_ARRAYS = frozenset(
    {
        "items",
        "prefixItems",
        "additionalItems",
        "unevaluatedItems",
        "minItems",
        "maxItems",
        "uniqueItems",
    }
)
OF_STRINGS = frozenset({"minLength", "maxLength", "pattern", "format"})
OF_NUMBERS = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"})
OF_ALL_TYPES = frozenset({"$ref", "type", "const", "enum", "allOf", "anyOf", "oneOf"})
UNREAD = frozenset(
    {
        "$dynamicRef",
        "$recursiveRef",
        "not",
        "if",
        "contains",
        "dependencies",
        "dependentRequired",
        "dependentSchemas",
    }
)
"""xgrammar has nothing to say them with."""
SIGNIFICANT = OF_OBJECTS | OF_ARRAYS | OF_STRINGS | OF_NUMBERS | OF_ALL_TYPES | UNREAD
"""All others are comments, or mean nothing without one of these."""

NO_EFFECT: Mapping[str, tuple[Json, ...]] = {
    "uniqueItems": (False,),
    "required": ([],),
    "properties": ({},),
    "patternProperties": ({},),
    "dependencies": ({},),
    "dependentRequired": ({},),
    "dependentSchemas": ({},),
    "propertyNames": (True, {}, {"type": "string"}),
    "minLength": (0,),
    "minItems": (0,),
    "minProperties": (0,),
}
"""Values with which a keyword says nothing."""
SHAPES: Mapping[str, type | tuple[type, ...]] = {
    "type": (str, list),
    **dict.fromkeys(("enum", "allOf", "anyOf", "oneOf", "required", "prefixItems"), list),
    **dict.fromkeys(("properties", "patternProperties", "dependencies"), dict),
    **dict.fromkeys(("pattern", "format"), str),
    **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems"), (int, float)),
    **dict.fromkeys(("minProperties", "maxProperties"), (int, float)),
    **dict.fromkeys(("minimum", "maximum", "multipleOf"), (int, float)),
    **dict.fromkeys(("exclusiveMinimum", "exclusiveMaximum"), (int, float, bool)),
}
"""The types of the keywords' values."""


def check_shapes(schema: Schema, at: Path, notes: Notes) -> None:
    """Raises InvalidConstraintError if a keyword's value cannot be read."""
    for keyword, shape in SHAPES.items():
        if keyword in schema and not isinstance(schema[keyword], shape):
            notes.refuse((*at, keyword), "it is of the wrong type")
    for keyword in ("enum", "allOf", "anyOf", "oneOf", "type"):
        if schema.get(keyword) == []:
            notes.refuse((*at, keyword), "it is empty")
    if not all(isinstance(key, str) for key in schema.get("required", ())):
        notes.refuse((*at, "required"), "it is a list of strings")
    names = schema.get("type", ())
    for name in [names] if isinstance(names, str) else names:
        if name not in TYPES:
            notes.refuse((*at, "type"), f"Invalid type: {name}")


def significant(schema: Schema) -> Schema:
    """What says something of instances; `const` as the `enum` that it is."""
    kept = {
        key: value
        for key, value in schema.items()
        if key in SIGNIFICANT and not _has_no_effect(key, value)
    }
    if not schema.keys() & {"then", "else"}:
        kept.pop("if", None)
    if "const" in kept:
        listed = [kept.pop("const")]
        if "enum" not in kept:
            kept["enum"] = listed
        else:
            kept["allOf"] = [*kept.get("allOf", ()), {"enum": listed}]
    return kept


def of_type(schema: Schema, keywords: frozenset[str]) -> Schema:
    """What a schema says by these keywords."""
    return {key: value for key, value in schema.items() if key in keywords}


def without(schema: Schema, *keywords: str) -> Schema:
    """What it says by all others."""
    return {key: value for key, value in schema.items() if key not in keywords}


def _has_no_effect(keyword: str, value: Json) -> bool:
    return any(value == idle and type(value) is type(idle) for idle in NO_EFFECT.get(keyword, ()))
