"""What can be told of a JSON Schema's instances without any instance at hand."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

Json = Any
Schema = dict[str, Any]

MAX_STEPS = 20
"""How far references are followed before nothing is said of what they lead to."""
MAX_COMPARISONS = 20_000

TYPES: Mapping[str, frozenset[str]] = {
    "object": frozenset({"object"}),
    "array": frozenset({"array"}),
    "string": frozenset({"string"}),
    "number": frozenset({"integer", "fraction"}),
    "integer": frozenset({"integer"}),
    "boolean": frozenset({"boolean"}),
    "null": frozenset({"null"}),
}
ALL_TYPES = frozenset().union(*TYPES.values())


class UnresolvedReferenceError(LookupError):
    """A `$ref` that leads nowhere within its document."""


class SchemaDocument:
    """A JSON Schema and the places that its references mean."""

    def __init__(self, root: Json) -> None:
        self.root = root
        self._types: dict[int, tuple[Json, frozenset[str]]] = {}
        """By the schema's identity; the schema itself is kept so that this stays its own."""
        self._num_comparisons = 0

    def resolve(self, reference: Json) -> Json:
        """What a `$ref` means. Raises UnresolvedReferenceError."""
        if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
            raise UnresolvedReferenceError("out of the schema, or by name")
        place = self.root
        for key in reference_path(reference):
            if isinstance(place, dict) and key in place:
                place = place[key]
            elif isinstance(place, list) and key.isdecimal() and int(key) < len(place):
                place = place[int(key)]
            else:
                raise UnresolvedReferenceError(f"{reference} leads nowhere")
        return place

    def dereference(self, schema: Json) -> Json:
        """The schema that a chain of mere references leads to; itself if it is not one."""
        for _ in range(MAX_STEPS):
            if not isinstance(schema, dict) or schema.keys() != {"$ref"}:
                return schema
            try:
                schema = self.resolve(schema["$ref"])
            except UnresolvedReferenceError:
                return schema
        return schema

    def types(self, schema: Json) -> frozenset[str]:
        """Types that its instances can have; `fraction` is a number that is no integer.

        There may be some that none of them has.
        """
        if not isinstance(schema, dict):
            return frozenset() if schema is False else ALL_TYPES
        if id(schema) not in self._types:
            self._types[id(schema)] = schema, ALL_TYPES  # what is said while they are sought
            self._types[id(schema)] = schema, self._find_types(schema)
        return self._types[id(schema)][1]

    def _find_types(self, schema: Schema) -> frozenset[str]:
        types = ALL_TYPES
        if "$ref" in schema:
            try:
                types &= self.types(self.resolve(schema["$ref"]))
            except UnresolvedReferenceError:
                return ALL_TYPES
        if (values := finite_values(schema)) is not None:
            types &= {type_of(value) for value in values}
        if (named := schema.get("type")) is not None:
            types &= named_types(named)
        for keyword in ("anyOf", "oneOf"):
            if isinstance(branches := schema.get(keyword), list):
                types &= frozenset().union(*map(self.types, branches))
        if isinstance(branches := schema.get("allOf"), list):
            types = types.intersection(*map(self.types, branches))
        return types

    def are_disjoint(self, one: Json, other: Json) -> bool:
        """Whether it is certain that no instance satisfies both."""
        self._num_comparisons += 1
        if self._num_comparisons > MAX_COMPARISONS:
            return False
        one, other = self.dereference(one), self.dereference(other)
        shared = self.types(one) & self.types(other)
        if not shared:
            return True
        if not (isinstance(one, dict) and isinstance(other, dict)):
            return False
        values, others = finite_values(one), finite_values(other)
        if values is not None and others is not None:
            return not {identity(value) for value in values} & {identity(value) for value in others}
        if shared != {"object"}:
            return False
        return any(
            self.are_disjoint(_property(one, key), _property(other, key))
            for key in _required(one) & _required(other)
        ) or (_excludes(one, other) or _excludes(other, one))


def reference_path(reference: str) -> tuple[str, ...]:
    """The keys that a `$ref` such as `#/$defs/name` consists of."""
    keys = unquote(reference).split("/")[1:]
    return tuple(key.replace("~1", "/").replace("~0", "~") for key in keys)


def type_of(value: Json) -> str:
    """The type of a JSON value, as `SchemaDocument.types` names it."""
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "integer" if value.is_integer() else "fraction"
        case str():
            return "string"
        case list():
            return "array"
        case _:
            return "object"


def named_types(named: Json) -> frozenset[str]:
    """The types that the keyword `type` names."""
    names = named if isinstance(named, list) else [named]
    return frozenset().union(*(TYPES.get(str(name), frozenset()) for name in names))


def finite_values(schema: Schema) -> list[Json] | None:
    """The values that `const` or `enum` lists, if it has either."""
    if "const" in schema:
        return [schema["const"]]
    values = schema.get("enum")
    return values if isinstance(values, list) else None


def identity(value: Json) -> str:
    """The same text for values that JSON Schema holds to be equal, and for no others."""
    return json.dumps(_without_fractions(value), sort_keys=True)


def _without_fractions(value: Json) -> Json:
    match value:
        case float() if value.is_integer():
            return int(value)
        case list():
            return [_without_fractions(item) for item in value]
        case dict():
            return {key: _without_fractions(item) for key, item in value.items()}
        case _:
            return value


def _required(schema: Schema) -> set[str]:
    required = schema.get("required")
    return (
        {key for key in required if isinstance(key, str)} if isinstance(required, list) else set()
    )


def _property(schema: Schema, key: str) -> Json:
    properties = schema.get("properties")
    return properties.get(key, True) if isinstance(properties, dict) else True


def _excludes(closed: Schema, other: Schema) -> bool:
    """Whether one allows no other properties than its own, and the other requires one more."""
    if closed.get("additionalProperties") is not False or closed.get("patternProperties"):
        return False
    return bool(_required(other) - (closed.get("properties") or {}).keys())
