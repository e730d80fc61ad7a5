"""The parts of a JSON Schema that are schemas themselves, and JSON pointers to them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from copy import copy
from typing import Any

Path = tuple[str | int, ...]
"""Keys and indexes that lead from a schema to one of its parts."""

DEFINITIONS = ("$defs", "definitions")
MAPS = ("properties", "patternProperties", "dependentSchemas", "dependencies")
CHOICES = ("anyOf", "oneOf")
LISTS = ("prefixItems", "items", "allOf", *CHOICES)
SINGLE = (
    "items",
    "additionalItems",
    "additionalProperties",
    "contains",
    "contentSchema",
    "else",
    "if",
    "not",
    "propertyNames",
    "then",
    "unevaluatedItems",
    "unevaluatedProperties",
)


def pointer(path: Path) -> str:
    """The JSON pointer, as the fragment of a URI that `$ref` takes."""
    escaped = (str(part).replace("~", "~0").replace("/", "~1") for part in path)
    return "#" + "".join(f"/{part}" for part in escaped)


def definitions(schema: object) -> list[Path]:
    """Where a schema has schemas that only `$ref` uses."""
    return list(_in_maps(schema, DEFINITIONS))


def children(schema: object) -> list[Path]:
    """Where a schema has all other schemas, not those within them."""
    if not isinstance(schema, dict):
        return []
    found = list(_in_maps(schema, MAPS))
    for keyword in LISTS:
        parts = schema.get(keyword)
        if isinstance(parts, list):
            found += [(keyword, i) for i, part in enumerate(parts) if _is_schema(part)]
    return found + [(keyword,) for keyword in SINGLE if _is_schema(schema.get(keyword))]


def walk(schema: object, path: Path = ()) -> Iterator[tuple[Path, dict[str, Any]]]:
    """The schema and all schemas in it, save those that are mere booleans."""
    if isinstance(schema, dict):
        yield path, schema
        for child in (*definitions(schema), *children(schema)):
            yield from walk(part(schema, child), path + child)


def part(schema: object, path: Path) -> Any:  # noqa: ANN401 (JSON)
    """What stands there. Raises LookupError."""
    found: Any = schema
    for key in path:
        found = found[key]
    return found


def replaced(schema: object, path: Path, value: object) -> Any:  # noqa: ANN401 (JSON)
    """The schema with another value there; the one given stays as it is."""
    if not path:
        return value
    changed: Any = copy(schema)
    changed[path[0]] = replaced(changed[path[0]], path[1:], value)
    return changed


def without(schema: dict[str, Any], places: Iterable[Path]) -> dict[str, Any]:
    """The schema without some of its definitions or children; the one given stays as it is.

    Where others are counted or refer to it, a schema that changes nothing takes its place.
    """
    changed = dict(schema)
    for keyword, *rest in places:
        name = str(keyword)
        if not rest:
            del changed[name]
            continue
        if changed[name] is schema[name]:
            changed[name] = copy(schema[name])
        if name in MAPS:
            del changed[name][rest[0]]
        else:
            changed[name][rest[0]] = name not in CHOICES
    return changed


def _in_maps(schema: object, keywords: tuple[str, ...]) -> Iterator[Path]:
    if isinstance(schema, dict):
        for keyword in keywords:
            parts = schema.get(keyword)
            if isinstance(parts, dict):
                yield from ((keyword, name) for name, part in parts.items() if _is_schema(part))


def _is_schema(value: object) -> bool:
    return isinstance(value, dict)
