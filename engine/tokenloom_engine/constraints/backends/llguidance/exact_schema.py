"""A JSON Schema in a form that llguidance enforces exactly, as far as there is one.

The library would serve the schema as it stands, but compares the JSON spelling of strings where the
standard compares their characters, and reads numbers as doubles.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, NamedTuple

from tokenloom_engine.constraints.backends.llguidance.number import (
    BOUNDS,
    LEAST,
    DoubleLiteral,
    InexactNumberError,
    Number,
    check_literal,
    check_multiples,
    exact_bounds,
    is_number,
)
from tokenloom_engine.constraints.backends.llguidance.pattern import exact_pattern
from tokenloom_engine.constraints.base import InvalidConstraintError
from tokenloom_engine.constraints.subschema import (
    CHOICES,
    DEFINITIONS,
    LISTS,
    MAPS,
    SINGLE,
    Path,
    part,
    pointer,
)

SUSPECT = re.compile(
    r"""
      \\u | \x7f
    | "(?:x-guidance|multipleOf)"
    | [\[,:]\s*-?[0-9](?:[0-9]{15}|[0-9]*[.eE])  # a long number, or one with a fraction
    | \[\^ | \[[^\]"]*(?:\\\\|\[|&&|~~|--) | \\\\[pP] | \(\?(?:P?<stop|[a-zA-Z]*x)  # of patterns
    """,
    re.VERBOSE,
)
"""In the text of each schema that may have to be changed, and of some that have not."""
NAMES = ("properties", "patternProperties", "required")
"""Keywords that name properties."""
NAMED = re.compile(f'"(?:{"|".join(NAMES)})"')
ESCAPES = 'nrbtf\\"u'
"""The escapes that the library allows, `u` for those control characters that have no other."""
ESCAPE_OPTIONS = ("json_allowed_escapes", "json_allow_general_unicode_escapes")
ESCAPED = re.compile(r"[\x00-\x07\x0b\x0e-\x1f\x7f]")
"""Characters that the library spells `\\u` alone."""
SCHEMAS = frozenset((*LISTS, *SINGLE))
OF_SCHEMAS = frozenset((*MAPS, *DEFINITIONS))
JOINTS = {*CHOICES, "allOf", "$ref"}
"""Keywords with schemas that hold for the same value as what stands beside them."""
DATA = ("const", "enum", "x-guidance")
"""Keywords with values that no `$ref` takes for schemas."""
MAX_CACHED = 16


class ExactSchema(NamedTuple):
    """What is compiled in a schema's place."""

    text: str
    escapes: str | None = None
    """`json_allowed_escapes`, if it is not what the library or the schema itself says."""
    warnings: tuple[str, ...] = ()


@lru_cache(MAX_CACHED)
def exact_schema(text: str, *, lenient: bool) -> ExactSchema:
    """Rewrite a schema. What is no JSON, or no schema, comes back as it is.

    Raises InvalidConstraintError with the JSON pointer of what cannot be enforced exactly; a
    `lenient` schema loses that keyword instead, with a warning.
    """
    if not SUSPECT.search(text):
        return ExactSchema(text, ESCAPES.removesuffix("u") if NAMED.search(text) else None)
    try:
        schema = json.loads(text, parse_float=DoubleLiteral, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return ExactSchema(text)
    return _Rewriting(schema, lenient=lenient).result(text)


class _Rewriting:
    """The rewriting of one schema, which it changes."""

    def __init__(self, schema: object, *, lenient: bool) -> None:
        self._schema = schema
        self._lenient = lenient
        self._is_changed = False
        self._warnings: list[str] = []
        parts = _dicts(schema)
        refs = [ref for found in parts if isinstance(ref := found.get("$ref"), str)]
        self._referred = {step for ref in refs for step in ref.split("/")}
        """Keys and indexes on the way to the targets of `$ref`, as they are written there."""
        self._has_escaped_refs = any("~" in ref or "%" in ref for ref in refs)
        self._has_names = any(found.keys() & NAMES for found in parts)
        self._has_nul = any(_names_nul(found) for found in parts)
        self._are_joined = any(JOINTS & found.keys() for found in parts)
        self._multiples: dict[Path, Number] = {}
        self._escaped: Path | None = None
        """A value that has a character which the library spells `\\u`."""
        self._open: Path | None = None
        """A schema of objects that have named properties and others."""

    def result(self, text: str) -> ExactSchema:
        """Do it; `text` is that of the schema."""
        self._rewrite(self._schema, ())
        self._check_multiples()
        escapes = self._escapes() if self._has_names else None
        if self._is_changed:
            text = json.dumps(self._schema)
        return ExactSchema(text, escapes, tuple(self._warnings))

    def _rewrite(self, schema: object, path: Path) -> None:
        if isinstance(schema, list):  # of schemas, or under a keyword that is none
            for i, child in enumerate(schema):
                self._rewrite(child, (*path, i))
        if not isinstance(schema, dict):
            return
        self._note_names(schema, path)
        self._rewrite_keywords(schema, path)
        for keyword, value in list(schema.items()):
            if not isinstance(value, (dict, list)):
                continue
            place = (*path, keyword)
            if keyword in OF_SCHEMAS and isinstance(value, dict):
                for name, child in value.items():
                    self._rewrite(child, (*place, name))
            elif keyword in SCHEMAS or self._is_referred_to(keyword):
                self._rewrite(value, place)

    def _rewrite_keywords(self, schema: dict[str, Any], path: Path) -> None:
        """What the schema says itself, apart from the schemas in it."""
        if "const" in schema:
            self._attempt(schema, path, "const", lambda: self._check_literal("const", schema, path))
        if isinstance(schema.get("enum"), list):
            self._attempt(schema, path, "enum", lambda: self._check_literal("enum", schema, path))
        if isinstance(schema.get("pattern"), str):
            self._attempt(schema, path, "pattern", lambda: self._rewrite_pattern(schema))
        if isinstance(schema.get("patternProperties"), dict):
            self._rewrite_names(schema, path)
        if is_number(multiple := schema.get("multipleOf")):
            self._multiples[path] = multiple
        if any(key in schema for key in BOUNDS):
            self._rewrite_bounds(schema, path)

    def _rewrite_pattern(self, schema: dict[str, Any]) -> None:
        pattern = exact_pattern(schema["pattern"])
        self._is_changed |= pattern != schema["pattern"]
        schema["pattern"] = pattern

    def _rewrite_names(self, schema: dict[str, Any], path: Path) -> None:
        names: dict[str, Any] = {}
        for name, child in schema["patternProperties"].items():
            try:
                names[exact_pattern(name)] = child
            except ValueError as error:  # without it, `additionalProperties` would mean more
                place = pointer((*path, "patternProperties", name))
                raise InvalidConstraintError(str(error), place) from error
        changed = [name for name in schema["patternProperties"] if name not in names]
        if changed and self._has_nul:
            place = pointer((*path, "patternProperties", changed[0]))
            raise InvalidConstraintError("it cannot be enforced beside names with U+0000", place)
        self._is_changed |= bool(changed)
        schema["patternProperties"] = names

    def _rewrite_bounds(self, schema: dict[str, Any], path: Path) -> None:
        types = _types(schema)
        if types is not None and not types & {"integer", "number"}:
            return
        is_integer = types is not None and "number" not in types
        while True:
            try:
                bounds = exact_bounds(schema, is_integer=is_integer)
                break
            except InexactNumberError as error:
                self._leave_out(schema, path, error.keyword, str(error))
        if bounds is None:
            return
        self._is_changed = True
        if bounds.raised is not None:
            place = pointer((*path, bounds.raised))
            self._warnings.append(f"integers below {LEAST} are left out (at {place})")
        for key in BOUNDS:
            schema.pop(key, None)
        schema.update(bounds.keywords)

    def _check_literal(self, keyword: str, schema: dict[str, Any], path: Path) -> None:
        """The strings and numbers of an `enum` or `const`."""
        for value in _leaves(schema[keyword]):
            if is_number(value):
                check_literal(keyword, value)
            elif isinstance(value, str) and ESCAPED.search(value):
                self._escaped = (*path, keyword)

    def _check_multiples(self) -> None:
        while True:
            try:
                return check_multiples(self._multiples.values(), are_joined=self._are_joined)
            except InexactNumberError as error:
                path = next(p for p, n in self._multiples.items() if n is error.number)
                del self._multiples[path]
                schema = part(self._schema, path)
                self._leave_out(schema, path, error.keyword, str(error))

    def _attempt(
        self, schema: dict[str, Any], path: Path, keyword: str, action: Callable[[], None]
    ) -> None:
        try:
            action()
        except ValueError as error:
            self._leave_out(schema, path, keyword, str(error))

    def _leave_out(self, schema: dict[str, Any], path: Path, keyword: str, reason: str) -> None:
        """A keyword that cannot be enforced. Raises InvalidConstraintError if it must be."""
        place = pointer((*path, keyword))
        if not self._lenient:
            raise InvalidConstraintError(reason, place)
        del schema[keyword]
        self._is_changed = True
        self._warnings.append(f"{reason} (at {place})")

    def _note_names(self, schema: dict[str, Any], path: Path) -> None:
        if schema.get("additionalProperties") is not False and any(schema.get(k) for k in NAMES):
            self._open = path if self._open is None else self._open

    def _escapes(self) -> str | None:
        """The escapes that leave the name of a property one spelling."""
        options = self._schema.get("x-guidance") if isinstance(self._schema, dict) else None
        own = options if isinstance(options, dict) else {}
        needs = self._escaped
        for option in ESCAPE_OPTIONS:
            if own.get(option) is True or "u" in str(own.get(option) or ""):
                needs = ("x-guidance", option)
        if needs is None:
            return str(own.get(ESCAPE_OPTIONS[0], ESCAPES)).replace("u", "")
        if self._open is not None:
            raise InvalidConstraintError(
                r"`\u` escapes would give property names a second spelling: they need "
                f"`additionalProperties: false` at {pointer(self._open)}",
                pointer(needs),
            )
        return None

    def _is_referred_to(self, keyword: str) -> bool:
        """Whether a `$ref` may lead into what stands under a keyword that is not a schema's."""
        return keyword not in DATA and (keyword in self._referred or self._has_escaped_refs)


def _types(schema: dict[str, Any]) -> set[object] | None:
    match schema.get("type"):
        case str(name):
            return {name}
        case [*names] if all(isinstance(name, str) for name in names):
            return set(names)
    return None


def _dicts(value: object) -> list[dict[str, Any]]:
    """All JSON objects in a value."""
    found: list[dict[str, Any]] = []
    left = [value]
    while left:
        value = left.pop()
        if isinstance(value, dict):
            found.append(value)
            left.extend(value.values())
        elif isinstance(value, list):
            left.extend(value)
    return found


def _names_nul(schema: dict[str, Any]) -> bool:
    """Whether it has a key, or names a property, with U+0000."""
    required = schema.get("required")
    names = [*schema, *(required if isinstance(required, list) else [])]
    return any("\0" in name for name in names if isinstance(name, str))


def _leaves(value: object) -> Iterator[object]:
    """The values in a value that are neither arrays nor objects."""
    if isinstance(value, (dict, list)):
        for child in value.values() if isinstance(value, dict) else value:
            yield from _leaves(child)
    else:
        yield value


def _no_constant(word: str) -> float:
    raise ValueError(f"{word} is not JSON")
