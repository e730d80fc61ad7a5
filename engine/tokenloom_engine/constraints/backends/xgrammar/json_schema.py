"""JSON Schemas, rewritten so that xgrammar reads all that they say.

xgrammar passes over what it does not implement: whatever stands beside `anyOf`, several branches
of `allOf`, `not`, `uniqueItems`, a length beside a pattern… The output may then break the schema.
So each schema is taken apart here. What xgrammar reads rightly goes on, some of it in other words
that mean the same or allow less; the rest is refused, or left out with a warning if that is asked.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import inf
from typing import NoReturn

from tokenloom_engine.constraints.backends.xgrammar.conjunction import (
    CannotConjoinError,
    Conjunction,
)
from tokenloom_engine.constraints.backends.xgrammar.document import (
    ALL_TYPES,
    TYPES,
    Json,
    Schema,
    SchemaDocument,
    UnresolvedReferenceError,
    named_types,
    reference_path,
    type_of,
)
from tokenloom_engine.constraints.backends.xgrammar.keywords import (
    OF_ARRAYS,
    UNREAD,
    check_shapes,
    of_type,
    significant,
    without,
)
from tokenloom_engine.constraints.backends.xgrammar.notes import Notes
from tokenloom_engine.constraints.backends.xgrammar.numbers import are_integers, translate_number
from tokenloom_engine.constraints.backends.xgrammar.objects import ObjectTranslator
from tokenloom_engine.constraints.backends.xgrammar.strings import translate_string
from tokenloom_engine.constraints.base import InvalidConstraintError
from tokenloom_engine.constraints.subschema import Path

MAX_SCHEMAS = 4_000
"""Subschemas; the limits bound what compiling takes, which nothing can interrupt."""
MAX_VALUES = 20_000
"""Values that the different `enum`s list, together."""
MAX_ENUM_LENGTH = 50_000
"""Bytes of the values that one `enum` lists."""
MAX_BRANCHES = 200
MAX_EXACT_INTEGER = 2**53


@dataclass(frozen=True, slots=True)
class Translation:
    """A JSON Schema in the words that xgrammar reads rightly."""

    schema: Schema
    warnings: list[str]
    """What was left out, one line a keyword."""
    patterns: list[str]
    """What the patterns are, in EBNF, that it calls `pattern_name(index)`."""


def translate_json_schema(text: str, *, lenient: bool) -> Translation:
    """Rewrite a schema's text. Raises InvalidConstraintError with the reason and the place.

    `lenient`: leave out what xgrammar does not implement.
    """
    try:
        root = json.loads(text, parse_constant=_refuse_constant)
        return _Translator(root, Notes(lenient=lenient)).run()
    except json.JSONDecodeError as error:
        raise InvalidConstraintError(f"it is not JSON: {error}") from error
    except RecursionError:
        raise InvalidConstraintError("it is nested too deeply") from None


class _Translator:
    def __init__(self, root: Json, notes: Notes) -> None:
        self._document = SchemaDocument(root)
        self._conjunction = Conjunction(self._document, significant)
        self._notes = notes
        self._definitions: dict[str, str] = {}
        """The name of each reference that was met."""
        self._num_schemas = 0
        self._num_values = 0
        self._enums: set[str] = set()

    def run(self) -> Translation:
        if isinstance(self._document.root, dict) and "x-guidance" in self._document.root:
            self._notes.leave_out("x-guidance", ())  # llguidance's own options
        schema = self._schema(self._document.root, ())
        definitions: Schema = {}
        while len(definitions) < len(self._definitions):
            reference, name = list(self._definitions.items())[len(definitions)]
            target = self._document.resolve(reference)
            definitions[name] = self._schema(target, reference_path(reference))
        if definitions:
            schema = {**schema, "$defs": definitions}
        return Translation(schema, self._notes.warnings, self._notes.patterns)

    def _schema(self, schema: Json, at: Path) -> Schema:
        if schema is True:
            return {}
        if schema is False:
            self._notes.refuse(at, "it allows nothing")
        if not isinstance(schema, dict):
            self._notes.refuse(at, "a schema is an object, true or false")
        self._num_schemas += 1
        if self._num_schemas > MAX_SCHEMAS:
            self._notes.refuse(at, f"there are more than {MAX_SCHEMAS} subschemas")
        check_shapes(schema, at, self._notes)
        schema = significant(schema)
        for keyword in sorted(UNREAD & schema.keys()):
            self._notes.leave_out(keyword, at)
        schema = without(schema, *UNREAD)
        for keyword, translate in (
            ("$ref", self._reference),
            ("allOf", self._all_of),
            ("anyOf", self._any_of),
            ("oneOf", self._any_of),
        ):
            if keyword in schema:
                return translate(keyword, schema[keyword], without(schema, keyword), at)
        return self._enum(schema, at) if "enum" in schema else self._typed(schema, at)

    def _reference(self, keyword: str, reference: Json, others: Schema, at: Path) -> Schema:
        try:
            target = self._document.resolve(reference)
        except UnresolvedReferenceError as error:
            self._notes.leave_out(keyword, at, f"({error})")
            return self._schema(others, at)
        alone = {keyword: reference}
        try:
            merged = self._conjunction.of(alone, others)
        except CannotConjoinError:
            for other in others:
                self._notes.leave_out(other, at, "beside $ref")
            merged = alone
        if merged is not alone:
            return self._schema(merged, at)
        if target is self._document.root:
            return {keyword: "#"}
        name = self._definitions.setdefault(reference, str(len(self._definitions)))
        return {keyword: f"#/$defs/{name}"}

    def _all_of(self, keyword: str, branches: list[Json], others: Schema, at: Path) -> Schema:
        merged: Json = others
        try:
            for branch in branches:
                merged = self._conjunction.of(merged, branch)
        except CannotConjoinError:
            self._notes.leave_out(keyword, at, "of such branches")
            return self._schema(others, at)
        return self._schema(merged, (*at, keyword))

    def _any_of(self, keyword: str, branches: list[Json], others: Schema, at: Path) -> Schema:
        place = (*at, keyword)
        if len(branches) > MAX_BRANCHES:
            self._notes.refuse(place, f"there are more than {MAX_BRANCHES} branches")
        try:
            branches = [self._conjunction.of(branch, others) for branch in branches]
        except CannotConjoinError:
            self._notes.leave_out(keyword, at, f"beside {', '.join(sorted(others))}")
            return self._schema(others, at)
        if keyword == "oneOf" and not self._are_disjoint(branches):
            self._notes.leave_out(keyword, at, "of branches that may hold together")
        possible = [
            self._schema(branch, (*place, index))
            for index, branch in enumerate(branches)
            if self._document.types(branch)
        ]
        if not possible:
            self._notes.refuse(place, "it allows nothing")
        return {} if {} in possible else {"anyOf": possible}

    def _are_disjoint(self, branches: list[Json]) -> bool:
        return all(
            self._document.are_disjoint(one, other)
            for index, one in enumerate(branches)
            for other in branches[:index]
        )

    def _enum(self, schema: Schema, at: Path) -> Schema:
        place, values = (*at, "enum"), schema["enum"]
        if "type" in schema:
            types = named_types(schema["type"])
            values = [value for value in values if type_of(value) in types]
        if not values:
            self._notes.refuse(place, "it allows nothing")
        for keyword in without(schema, "enum", "type"):
            self._notes.leave_out(keyword, at, "beside enum")
        self._check_size(place, values)
        if any(_is_inexact(value) for value in values):
            self._notes.leave_out("enum", at, "with integers of more than 53 bits")
        return {"enum": values}

    def _check_size(self, place: Path, values: list[Json]) -> None:
        text = json.dumps(values)
        if len(text) > MAX_ENUM_LENGTH:
            self._notes.refuse(place, f"it is longer than {MAX_ENUM_LENGTH} bytes")
        if text not in self._enums:  # the library, too, compiles equal ones once
            self._enums.add(text)
            self._num_values += len(values)
        if self._num_values > MAX_VALUES:
            self._notes.refuse(place, f"there are more than {MAX_VALUES} values")

    def _typed(self, schema: Schema, at: Path) -> Schema:
        types = named_types(schema["type"]) if "type" in schema else ALL_TYPES
        result: Schema = {}
        if "object" in types:
            result |= ObjectTranslator(
                schema, at, self._notes, self._conjunction, self._schema
            ).run()
        if "array" in types:
            result |= self._array(schema, at)
        if "string" in types:
            result |= translate_string(schema, at, self._notes)
        if "integer" in types:
            result |= translate_number(schema, at, self._notes)
        if "type" not in schema and not result:
            return {}
        names = [name for name in TYPES if TYPES[name] <= types]
        number = "integer" if "multipleOf" in result or are_integers(schema) else "number"
        names = [name for name in names if name not in ("integer", "number") or name == number]
        return {"type": names[0] if len(names) == 1 else names, **result}

    def _array(self, schema: Schema, at: Path) -> Schema:
        own = of_type(schema, OF_ARRAYS)
        first, place = own.get("prefixItems", []), (*at, "prefixItems")
        others = own.get("items", own.get("unevaluatedItems", True))
        if isinstance(others, list):  # as it was before 2020
            first, place, others = others, (*at, "items"), own.get("additionalItems", True)
        most = own.get("maxItems", inf)
        if own.get("uniqueItems") and most > 1:
            self._notes.leave_out("uniqueItems", at)
        result: Schema = {key: own[key] for key in own if key in ("minItems", "maxItems")}
        if len(first) >= most or (others is False and not first):
            first, others = first[: int(min(most, len(first)))], False
            result["maxItems"] = len(first)
        if first:
            result["prefixItems"] = [
                self._schema(item, (*place, index)) for index, item in enumerate(first)
            ]
        if others is False and first:
            result["items"] = False
        elif others is not True and others is not False:
            result["items"] = self._schema(others, (*at, "items"))
        return result


def _is_inexact(value: Json) -> bool:
    match value:
        case int() if not isinstance(value, bool):
            return abs(value) > MAX_EXACT_INTEGER
        case list():
            return any(_is_inexact(item) for item in value)
        case dict():
            return any(_is_inexact(item) for item in value.values())
        case _:
            return False


def _refuse_constant(name: str) -> NoReturn:
    raise InvalidConstraintError(f"it is not JSON: {name}")
