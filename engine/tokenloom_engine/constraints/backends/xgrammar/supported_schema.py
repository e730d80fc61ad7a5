"""Checks a JSON Schema against the keywords that xgrammar implements exactly.

xgrammar ignores or misreads many keywords, and its output can then break the schema. The tables
list the combinations that it reads rightly. All else is refused, or left out with a warning.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NoReturn

from tokenloom_engine.constraints.base import InvalidConstraintError
from tokenloom_engine.constraints.subschema import Path, part, pointer

Schema = dict[str, Any]

PYTHON_TYPES: Mapping[str, type | tuple[type, ...]] = {
    "null": type(None),
    "boolean": bool,
    "integer": int,
    "number": (int, float),
    "string": str,
    "array": list,
    "object": dict,
    "schema": (dict, bool),
}
BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
KEYWORDS: Mapping[str, Mapping[str, str]] = {
    "null": {},
    "boolean": {},
    "integer": dict.fromkeys(BOUNDS, "number"),
    "number": dict.fromkeys(BOUNDS, "number"),
    "string": {"format": "string"},
    "array": {
        "items": "schema",
        "prefixItems": "array",
        "minItems": "integer",
        "maxItems": "integer",
    },
    "object": {"properties": "object", "required": "array", "additionalProperties": "schema"},
}
"""The keywords of each type that are supported, and the types of their values."""
ALONE = ("$ref", "enum", "const", "anyOf")
"""xgrammar ignores whatever stands beside one of these."""
UNSUPPORTED = {
    *("allOf", "oneOf", "not", "if", "$dynamicRef", "$recursiveRef", "x-guidance"),
    *("minLength", "maxLength", "pattern", "multipleOf"),
    *("additionalItems", "unevaluatedItems", "uniqueItems", "contains"),
    *("patternProperties", "propertyNames", "minProperties", "maxProperties"),
    *("unevaluatedProperties", "dependencies", "dependentRequired", "dependentSchemas"),
}
ASSERTIONS = UNSUPPORTED.union(["type"], ALONE, *KEYWORDS.values())
"""The keywords that limit an instance. JSON Schema takes all others for annotations."""
FORMATS = ("email", "uuid")
"""Formats that xgrammar reads exactly. It allows the 30th of February and `01.2.3.4`."""
MAX_EXACT_INTEGER = 2**53


class SupportedSchema:
    """The part of a schema that xgrammar reads rightly."""

    def __init__(self, text: str, *, lenient: bool) -> None:
        """`lenient`: leave out unsupported keywords with a warning instead of refusing them.

        Raise InvalidConstraintError with the reason and the JSON pointer.
        """
        try:
            self._root = json.loads(text, parse_constant=_refuse_constant)
        except json.JSONDecodeError as error:
            raise InvalidConstraintError(f"it is not JSON: {error}") from error
        self._lenient = lenient
        self._definitions: dict[Path, Schema | None] = {}
        """Definitions that a reference names; None until they are read."""
        self.warnings: list[str] = []
        """One line for each keyword that was left out."""
        self.schema = self._supported(self._root, ())
        while unread := [path for path, schema in self._definitions.items() if schema is None]:
            for path in unread:
                self._definitions[path] = self._supported(part(self._root, path), path)
        for (group, name), schema in self._definitions.items():
            self.schema.setdefault(str(group), {})[name] = schema

    def _supported(self, schema: object, path: Path) -> Schema:
        if schema is True:
            return {}
        if schema is False:
            self._refuse(path, "it allows nothing")
        if not isinstance(schema, dict):
            self._refuse(path, "a schema is an object, true or false")
        if path and "$id" in schema:
            self._leave_out(path, "$id", "below the root")
        found = {keyword: schema[keyword] for keyword in schema if keyword in ASSERTIONS}
        for keyword in ALONE:
            if keyword in found:
                return self._alone(keyword, found, path)
        return self._typed(found, path)

    def _alone(self, keyword: str, found: Schema, path: Path) -> Schema:
        value, here = found.pop(keyword), (*path, keyword)
        if keyword in ("enum", "const"):
            values = [value] if keyword == "const" else self._list(value, here)
            names = found.get("type", ())
            names = [names] if isinstance(names, str) else names
            if all(any(_is_of_type(one, name) for name in names) for one in values):
                found.pop("type", None)  # the values imply it
            if any(map(_has_inexact_integer, values)):
                self._leave_out(path, keyword, "with integers of more than 53 bits")
                return {}
        for other in found:
            self._leave_out(path, other, f"beside {keyword}")
        if keyword == "$ref" and not self._read_reference(value, here):
            self._leave_out(path, keyword, f"to {value!r}")
            return {}
        if keyword == "anyOf":
            value = self._schemas(value, here)
        return {keyword: value}

    def _read_reference(self, value: object, path: Path) -> bool:
        """Return whether xgrammar can follow it: to `#`, `#/$defs/NAME` or `#/definitions/NAME`."""
        start, *rest = str(value).split("/")
        if start != "#" or "%" in str(value):
            return False
        target = tuple(name.replace("~1", "/").replace("~0", "~") for name in rest)
        if not target:
            return True
        if len(target) != 2 or target[0] not in ("$defs", "definitions"):
            return False
        try:
            part(self._root, target)
        except (LookupError, TypeError):
            self._refuse(path, f"{value} leads nowhere")
        self._definitions.setdefault(target, None)
        return True

    def _typed(self, found: Schema, path: Path) -> Schema:
        names = self._types(found, path)
        supported: Schema = {}
        for keyword, value in found.items():
            shape = next(
                (KEYWORDS[name][keyword] for name in names if keyword in KEYWORDS[name]), ""
            )
            if not shape:
                self._leave_out(path, keyword)
            elif not _is_of_type(value, shape):
                self._refuse((*path, keyword), "it is of the wrong type")
            elif keyword == "format" and value not in FORMATS:
                self._leave_out(path, keyword, repr(value))
            else:
                supported[keyword] = value
        if "array" in names:
            self._array(supported, path)
        if "object" in names:
            self._object(supported, path)
        return {"type": names, **supported} if names else {}

    def _types(self, found: Schema, path: Path) -> list[str]:
        """Return the types that are named; else those that the keywords belong to."""
        if "type" not in found:
            return [name for name, keywords in KEYWORDS.items() if keywords.keys() & found.keys()]
        names = found.pop("type")
        names = self._list([names] if isinstance(names, str) else names, (*path, "type"))
        for name in names:
            if name not in KEYWORDS:
                self._refuse((*path, "type"), f"Invalid type: {name}")
        return names

    def _array(self, supported: Schema, path: Path) -> None:
        if isinstance(supported.get("items"), dict):
            supported["items"] = self._supported(supported["items"], (*path, "items"))
        if "prefixItems" in supported:
            here = (*path, "prefixItems")
            supported["prefixItems"] = self._schemas(supported["prefixItems"], here)

    def _object(self, supported: Schema, path: Path) -> None:
        properties = supported.pop("properties", {})
        required = supported.pop("required", [])
        others = supported.pop("additionalProperties", True)
        if unknown := [name for name in required if name not in properties]:
            self._leave_out(path, "required", f"of {unknown[0]!r}, which has no schema")
        if properties:
            if isinstance(others, dict):
                self._leave_out(path, "additionalProperties", "beside properties")
            # Otherwise "\u0061" would pass as another property than "a".
            others = False
            supported["properties"] = {
                name: self._supported(schema, (*path, "properties", name))
                for name, schema in properties.items()
            }
            supported["required"] = [name for name in required if name in properties]
        elif isinstance(others, dict):
            others = self._supported(others, (*path, "additionalProperties"))
        supported["additionalProperties"] = others

    def _schemas(self, value: object, path: Path) -> list[Schema]:
        return [
            self._supported(schema, (*path, index))
            for index, schema in enumerate(self._list(value, path))
        ]

    def _list(self, value: object, path: Path) -> list[Any]:
        if not isinstance(value, list):
            self._refuse(path, "it is of the wrong type")
        if not value:
            self._refuse(path, "it is empty")
        return value

    def _leave_out(self, path: Path, keyword: str, detail: str = "") -> None:
        place = pointer((*path, keyword))
        what = f"{keyword} {detail}".rstrip()
        if not self._lenient:
            raise InvalidConstraintError(
                f"{what} is not supported by xgrammar; llguidance may support it: "
                "--constraint-backend json_schema=llguidance",
                place,
            )
        self.warnings.append(f"{what} is left out (at {place})")

    def _refuse(self, path: Path, reason: str) -> NoReturn:
        raise InvalidConstraintError(reason, pointer(path))


def _is_of_type(value: object, name: object) -> bool:
    allows_bool = name in ("boolean", "schema")
    is_known = isinstance(name, str) and name in PYTHON_TYPES
    return (
        is_known
        and isinstance(value, PYTHON_TYPES[str(name)])
        and (allows_bool or not isinstance(value, bool))
    )


def _has_inexact_integer(value: object) -> bool:
    match value:
        case list():
            return any(map(_has_inexact_integer, value))
        case dict():
            return any(map(_has_inexact_integer, value.values()))
        case _:
            return isinstance(value, int) and abs(value) > MAX_EXACT_INTEGER


def _refuse_constant(name: str) -> NoReturn:
    raise InvalidConstraintError(f"it is not JSON: {name}")
