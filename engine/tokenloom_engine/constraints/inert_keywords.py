"""Keywords of a JSON Schema that no instance can break: back ends need not know them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from tokenloom_engine.constraints.subschema import Path, part, walk

Schema = dict[str, Any]

VALIDATED_FORMATS = frozenset(
    [
        "date-time",
        "date",
        "time",
        "duration",
        "email",
        "idn-email",
        "hostname",
        "idn-hostname",
        "ipv4",
        "ipv6",
        "uri",
        "uri-reference",
        "iri",
        "iri-reference",
        "uuid",
        "uri-template",
        "json-pointer",
        "relative-json-pointer",
        "regex",
    ]
)
"""The formats that JSON Schema 2020-12 defines. All others are annotations, as the standard says of
what an implementation does not know."""
ANNOTATIONS = frozenset(
    [
        "title",
        "description",
        "default",
        "examples",
        "deprecated",
        "readOnly",
        "writeOnly",
        "$comment",
        "contentEncoding",
        "contentMediaType",
        "contentSchema",
    ]
)
COUNTS = frozenset(
    {"minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"}
    | {"minContains", "maxContains"}
)
"""Numbers without a fraction, which may be written with one: 10.0 is 10."""
DYNAMIC = re.compile(r'"\$(?:dynamic|recursive)Ref"')
CANDIDATE = re.compile(
    r'"uniqueItems"|"format"|"propertyNames"|"dependen(?:tRequired|tSchemas|cies)"'
    r'|"unevaluated(?:Items|Properties)"|"not"|"if"|"then"|"else"|"(?:min|max)Contains"'
    r'|"minProperties"|"maxProperties"|"(?:min|max)(?:Length|Items)"\s*:\s*[0-9]+[.eE]'
    r'|"\$(?:dynamic|recursive)Anchor"'
)
"""In the text of every schema that has an inert keyword, and of some others."""


def without_inert_keywords(schema: str) -> str:
    """Take them out of the text of a schema; `true` becomes an object that allows everything.

    A text that has none, or that is no schema, is returned as it is. Places stay what they were.
    """
    if schema.strip() == "true":
        return "{}"
    if not CANDIDATE.search(schema):
        return schema
    try:
        root = json.loads(schema)
    except (ValueError, RecursionError):
        return schema  # the back end says what is wrong
    has_dynamic = DYNAMIC.search(schema) is not None
    # Inner schemas first: what they lose can make a keyword around them inert.
    paths: list[Path] = [path for path, _ in walk(root)]
    changes = [_clean(part(root, path), has_dynamic=has_dynamic) for path in reversed(paths)]
    return json.dumps(root) if any(changes) else schema


def _clean(schema: Schema, *, has_dynamic: bool) -> bool:
    """Take inert keywords out of one schema, not those within it. Returns whether it had any."""
    before = dict(schema)
    for keyword in COUNTS & schema.keys():
        if isinstance(schema[keyword], float) and schema[keyword].is_integer():
            schema[keyword] = int(schema[keyword])
    for keyword, is_inert in INERT.items():
        if keyword in schema and is_inert(schema):
            del schema[keyword]
    for keyword, nothing in DEPENDENT.items():
        if isinstance(entries := schema.get(keyword), dict):
            kept = {name: entry for name, entry in entries.items() if not nothing(entry)}
            if not kept:
                del schema[keyword]
            elif len(kept) < len(entries):
                schema[keyword] = kept
    if not has_dynamic:
        schema.pop("$dynamicAnchor", None)
        schema.pop("$recursiveAnchor", None)
    return schema.keys() != before.keys() or any(schema[key] is not before[key] for key in schema)


def _allows_all(schema: object) -> bool:
    return schema is True or (isinstance(schema, dict) and schema.keys() <= ANNOTATIONS)


def _allows_all_strings(schema: object) -> bool:
    if not isinstance(schema, dict):
        return schema is True
    types = schema.get("type", "string")
    rest = schema.keys() - ANNOTATIONS - {"type", "minLength"}
    return not rest and schema.get("minLength", 0) == 0 and "string" in (types, *_listed(types))


def _listed(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _is_unique_anyway(schema: Schema) -> bool:
    most = schema.get("maxItems")
    return schema["uniqueItems"] is False or (isinstance(most, int) and most <= 1)


def _has_enough_properties(schema: Schema) -> bool:
    least = schema["minProperties"]
    required = {name for name in _listed(schema.get("required")) if isinstance(name, str)}
    return isinstance(least, int) and not isinstance(least, bool) and 0 <= least <= len(required)


def _has_few_properties(schema: Schema) -> bool:
    most, properties = schema["maxProperties"], schema.get("properties", {})
    is_closed = schema.get("additionalProperties") is False and not schema.get("patternProperties")
    return (
        is_closed
        and isinstance(most, int)
        and isinstance(properties, dict)
        and len(properties) <= most
    )


INERT: dict[str, Callable[[Schema], bool]] = {
    "uniqueItems": _is_unique_anyway,
    "format": lambda s: isinstance(s["format"], str) and s["format"] not in VALIDATED_FORMATS,
    "propertyNames": lambda s: _allows_all_strings(s["propertyNames"]),
    "unevaluatedProperties": lambda s: _allows_all(s["unevaluatedProperties"]),
    "unevaluatedItems": lambda s: _allows_all(s["unevaluatedItems"]),
    "not": lambda s: s["not"] is False,
    "minProperties": _has_enough_properties,
    "maxProperties": _has_few_properties,
    "then": lambda s: "if" not in s or _allows_all(s["then"]),
    "else": lambda s: "if" not in s or _allows_all(s["else"]),
    "if": lambda s: not s.keys() & {"then", "else"},
    "contains": lambda s: s.get("minContains") == 0 and "maxContains" not in s,
    "minContains": lambda s: "contains" not in s,
    "maxContains": lambda s: "contains" not in s,
}
"""When a keyword that a schema has is inert, in the order in which they are looked at."""
DEPENDENT: dict[str, Callable[[object], bool]] = {
    "dependentRequired": lambda names: names == [],
    "dependentSchemas": _allows_all,
    "dependencies": lambda entry: entry == [] or _allows_all(entry),
}
"""Keywords of entries by property, and which entries are inert."""
