"""Name patterns of a JSON Schema that match nothing but declared properties."""

from __future__ import annotations

import json
import re
from typing import Any

from tokenloom_engine.constraints.subschema import walk

NAMES = re.compile(r"\^(?:(?P<name>[\w ]+)|\((?:\?:)?(?P<names>[\w ]+(?:\|[\w ]+)*)\))\$")
"""A pattern that lists names: `^a$` or `^(a|b)$`."""


def with_closed_names(schema: str) -> str:
    """Move what such patterns say of properties to the properties.

    llguidance would offer another property where no name is left for it, a dead end.
    """
    if '"patternProperties"' not in schema or '"^' not in schema:
        return schema
    try:
        root = json.loads(schema)
    except (ValueError, RecursionError):
        return schema  # the back end says what is wrong
    changes = [_close(part) for _, part in list(walk(root))]
    return json.dumps(root) if any(changes) else schema


def _close(schema: dict[str, Any]) -> bool:
    patterns, properties = schema.get("patternProperties"), schema.get("properties")
    if not isinstance(patterns, dict) or not isinstance(properties, dict):
        return False
    closed = {pattern: names for pattern in patterns if (names := _names(pattern, properties))}
    for pattern, names in closed.items():
        for name in names:
            properties[name] = {"allOf": [properties[name], patterns[pattern]]}
        del patterns[pattern]
    if not patterns:
        del schema["patternProperties"]
    return bool(closed)


def _names(pattern: str, properties: dict[str, Any]) -> list[str]:
    """The names that a pattern lists, if it lists nothing but declared properties."""
    found = NAMES.fullmatch(pattern)
    if found is None:
        return []
    names = [found["name"]] if found["name"] else found["names"].split("|")
    return names if properties.keys() >= set(names) else []
