"""Says of what llguidance leaves out of a schema where it stands."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from tokenloom_engine.constraints.subschema import Path, pointer, walk

COUNT = re.compile(r" \(\d+ times\)$")
"""How the library ends a warning that it would say again."""
KEYS = re.compile(r'Unimplemented keys: (\[".*"\])')
FORMAT = re.compile(r"Unknown format: (.*)")
ONE_OF = re.compile(r"oneOf not fully supported")
COUNT_OF_PROPERTIES = re.compile(r"min/maxProperties only supported")
MAX_PLACES = 5
"""Named in one warning."""


def with_places(schema: str, warnings: list[str]) -> list[str]:
    """The library's warnings of a schema, each with the JSON pointers of what it is about."""
    if not warnings:
        return []
    warnings = [COUNT.sub("", warning) for warning in warnings]
    keys = {key for warning in warnings for key in _keys(warning)}
    found = [
        (warning, [pointer(path) for path in _places(json.loads(schema), warning, keys)])
        for warning in warnings
    ]
    return [f"{warning} (at {_listed(places)})" if places else warning for warning, places in found]


def _places(schema: object, warning: str, all_keys: set[str]) -> Iterator[Path]:
    """`all_keys`: all that the library does not know, by all warnings."""
    keys = _keys(warning)
    format = FORMAT.fullmatch(warning)
    for path, part in walk(schema):
        if keys and part.keys() & all_keys == keys:
            yield from ((*path, key) for key in sorted(keys))
        elif format and part.get("format") == format[1]:
            yield (*path, "format")
        elif ONE_OF.match(warning) and "oneOf" in part:
            yield (*path, "oneOf")
        elif COUNT_OF_PROPERTIES.match(warning):
            yield from ((*path, key) for key in ("minProperties", "maxProperties") if key in part)


def _keys(warning: str) -> set[str]:
    found = KEYS.fullmatch(warning)
    return set(json.loads(found[1])) if found else set()


def _listed(places: list[str]) -> str:
    more = len(places) - MAX_PLACES
    return ", ".join(places[:MAX_PLACES]) + (f" and {more} more" if more > 0 else "")
