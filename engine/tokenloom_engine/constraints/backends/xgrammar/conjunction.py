"""One JSON Schema that says what two say."""

from __future__ import annotations

from collections.abc import Callable

from tokenloom_engine.constraints.backends.xgrammar.document import (
    MAX_STEPS,
    TYPES,
    Json,
    Schema,
    SchemaDocument,
    finite_values,
    identity,
    named_types,
    type_of,
)

OF_PROPERTIES = frozenset(
    {"properties", "patternProperties", "additionalProperties", "unevaluatedProperties"}
)
OF_ITEMS = frozenset({"items", "prefixItems", "additionalItems", "unevaluatedItems"})
LEAST = frozenset({"minimum", "minLength", "minItems", "minProperties"})
MOST = frozenset({"maximum", "maxLength", "maxItems", "maxProperties"})


class CannotConjoinError(ValueError):
    """No single schema, of the kind that is looked for, says the same."""


class Conjunction:
    """Puts schemas of one document together."""

    def __init__(self, document: SchemaDocument, significant: Callable[[Schema], Schema]) -> None:
        """`significant` leaves out what says nothing of instances."""
        self._document = document
        self._significant = significant

    def of(self, one: Json, other: Json, steps: int = 0) -> Json:
        """A schema with exactly the instances that both have. Raises CannotConjoinError.

        It is one of the two itself, uncopied, if that says it all: a reference stays one.
        """
        if steps > MAX_STEPS:
            raise CannotConjoinError
        if self._implies(one, other):
            return one
        if self._implies(other, one):
            return other
        one, other = self._read(one), self._read(other)
        merged: Schema = dict(one)
        _check_neighbours(one, other)
        for keyword, value in other.items():
            if keyword in one:
                value = self._both(keyword, one[keyword], value, steps)
            merged[keyword] = value
        return _with_values_of_its_types(merged)

    def _implies(self, one: Json, other: Json) -> bool:
        """Whether it is plain that all instances of one are the other's as well."""
        if other is True or one is False or one == other:
            return True
        if not isinstance(other, dict):
            return False
        other = self._significant(other)
        return not other or (
            other.keys() == {"type"} and self._document.types(one) <= named_types(other["type"])
        )

    def _read(self, schema: Json) -> Schema:
        schema = self._document.dereference(schema)
        if not isinstance(schema, dict) or "$ref" in schema:
            raise CannotConjoinError
        return self._significant(schema)

    def _both(self, keyword: str, one: Json, other: Json, steps: int) -> Json:
        if identity(one) == identity(other):
            return one
        match keyword:
            case "required":
                return [*one, *(key for key in other if key not in one)]
            case "type":
                return _types_of_both(one, other)
            case "enum":
                others = {identity(value) for value in other}
                return [value for value in one if identity(value) in others]
            case "properties":
                shared = {
                    key: self.of(one[key], other[key], steps + 1) for key in one if key in other
                }
                return one | other | shared
            case _ if keyword in LEAST | MOST and _are_numbers(one, other):
                return max(one, other) if keyword in LEAST else min(one, other)
        raise CannotConjoinError


def _check_neighbours(one: Schema, other: Schema) -> None:
    """Keywords that mean their neighbours cannot be brought together with other neighbours."""
    for group, keyword in ((OF_PROPERTIES, "properties"), (OF_ITEMS, None)):
        ours, theirs = one.keys() & group, other.keys() & group
        if not ours or not theirs or (ours == theirs == {keyword}):
            continue
        if any(identity(one.get(key)) != identity(other.get(key)) for key in ours | theirs):
            raise CannotConjoinError


def _types_of_both(one: Json, other: Json) -> list[str]:
    shared = named_types(one) & named_types(other)
    names = [name for name in TYPES if TYPES[name] <= shared]
    if not names:
        raise CannotConjoinError
    return [name for name in names if not (name == "integer" and "number" in names)]


def _with_values_of_its_types(schema: Schema) -> Schema:
    """If it lists values, only those of the types that it names."""
    values = finite_values(schema)
    if values is None or "type" not in schema:
        return schema
    types = named_types(schema["type"])
    listed = [value for value in values if type_of(value) in types]
    others = {key: value for key, value in schema.items() if key not in ("const", "enum", "type")}
    return {**others, "enum": listed}


def _are_numbers(one: Json, other: Json) -> bool:
    return all(
        isinstance(value, int | float) and not isinstance(value, bool) for value in (one, other)
    )
