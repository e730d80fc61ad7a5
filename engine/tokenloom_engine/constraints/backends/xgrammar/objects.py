"""What JSON Schemas say of objects, in xgrammar's words."""

from __future__ import annotations

import re
from collections.abc import Callable
from math import inf

from tokenloom_engine.constraints.backends.xgrammar.conjunction import (
    CannotConjoinError,
    Conjunction,
)
from tokenloom_engine.constraints.backends.xgrammar.document import Json, Schema
from tokenloom_engine.constraints.backends.xgrammar.keywords import OF_OBJECTS, of_type
from tokenloom_engine.constraints.backends.xgrammar.notes import Notes
from tokenloom_engine.constraints.backends.xgrammar.strings import read_pattern
from tokenloom_engine.constraints.subschema import Path

MAX_COUNTED_PROPERTIES = 100
"""Properties of an object that says how many of them there must be: the grammar has rules for each
of them and each count."""

Translate = Callable[[Json, Path], Schema]
"""Translates a subschema, from it and its place."""


class ObjectTranslator:
    """Translates one schema's keywords of objects."""

    def __init__(
        self,
        schema: Schema,
        at: Path,
        notes: Notes,
        conjunction: Conjunction,
        translate: Translate,
    ) -> None:
        self._own = of_type(schema, OF_OBJECTS)
        self._at = at
        self._notes = notes
        self._conjunction = conjunction
        self._translate = translate
        self._named: Schema = self._own.get("properties", {})
        self._required: list[str] = self._own.get("required", [])
        others = self._own.get("unevaluatedProperties", True)
        self._others: Json = self._own.get("additionalProperties", others)
        """What properties without a name or a pattern must be."""

    def run(self) -> Schema:
        """Raises InvalidConstraintError."""
        if not self._own:
            return {}
        patterns = self._patterns()
        is_closed = self._others is False and not patterns
        result: Schema = {
            "properties": self._properties(is_closed),
            "patternProperties": {
                pattern: self._translate(schema, (*self._at, "patternProperties"))
                for pattern, schema in patterns.items()
            },
            "propertyNames": self._names(),
            "required": self._required,
            **self._counts(is_closed),
        }
        if patterns or self._others is False:
            result["additionalProperties"] = False
        elif self._others is not True:
            place = (*self._at, "additionalProperties")
            result["additionalProperties"] = self._translate(self._others, place)
        return {key: value for key, value in result.items() if value not in ({}, [])}

    def _properties(self, is_closed: bool) -> Schema:
        """The named properties, with those that are only required: xgrammar forgets them."""
        unnamed = [key for key in self._required if key not in self._named]
        named = {**self._named, **{key: self._schema_of(key) for key in unnamed}}
        result: Schema = {}
        for key, schema in named.items():
            if schema is not False:
                result[key] = self._translate(schema, (*self._at, "properties", key))
            elif key in self._required:
                self._notes.refuse((*self._at, "required"), f"{key!r} is not allowed")
            elif not is_closed:
                self._notes.leave_out("properties", self._at, f"with false for {key!r}")
        return result

    def _schema_of(self, key: str) -> Json:
        """The schema of a property that is not named."""
        for pattern, schema in self._own.get("patternProperties", {}).items():
            if _may_match(pattern, key):
                return schema
        return self._others

    def _patterns(self) -> Schema:
        """The patterns of properties, if xgrammar keeps these apart from all others."""
        given: Schema = self._own.get("patternProperties", {})
        if self._others is True:  # what is allowed anyway need not be said
            given = {key: value for key, value in given.items() if value not in (True, {})}
        if not given:
            return {}
        regex = None
        if len(given) > 1:
            reason = "with several patterns"
        elif not isinstance(self._others, bool):
            reason = "beside additionalProperties"
        elif "propertyNames" in self._own:
            reason = "beside propertyNames"
        elif any(_may_match(next(iter(given)), key) for key in (*self._named, *self._required)):
            reason = "that match named properties"
        else:
            regex, reason = read_pattern(next(iter(given)))
        if regex is None:
            self._notes.leave_out("patternProperties", self._at, reason)
            return {}
        (schema,) = given.values()
        return {self._notes.keep_pattern(regex.containing): schema}

    def _names(self) -> Schema:
        """What the names must be, if that is all that is said of the properties."""
        if "propertyNames" not in self._own:
            return {}
        reason = "beside other properties"
        has_others = self._own.keys() & {"properties", "patternProperties", "required"}
        if not has_others and self._others is not False:
            try:
                names = self._conjunction.of(self._own["propertyNames"], {"type": "string"})
            except CannotConjoinError:
                names, reason = False, "of this kind"
            if names is not False:
                translated = self._translate(names, (*self._at, "propertyNames"))
                if translated.get("type") == "string" or "enum" in translated:
                    return translated
                reason = "of this kind"
        self._notes.leave_out("propertyNames", self._at, reason)
        return {}

    def _counts(self, is_closed: bool) -> Schema:
        """How many properties there may be."""
        least, most = self._own.get("minProperties", 0), self._own.get("maxProperties", inf)
        counts: Schema = {}
        if least > len(self._required):
            counts["minProperties"] = int(least)
        if most != inf and not (is_closed and most >= len(self._named)):
            counts["maxProperties"] = int(most)
        if counts and len(self._named) > MAX_COUNTED_PROPERTIES:
            self._notes.refuse(
                (*self._at, next(iter(counts))),
                f"it stands beside more than {MAX_COUNTED_PROPERTIES} properties",
            )
        return counts


def _may_match(pattern: str, key: str) -> bool:
    try:
        return re.search(pattern, key) is not None
    except re.error:
        return True
