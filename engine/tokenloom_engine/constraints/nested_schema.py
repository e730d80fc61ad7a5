"""A JSON Schema in a structural tag, found by the path that a reason begins with."""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple

REASON = re.compile(
    r"(?P<path>[a-z_]+(?:\.[a-z_]+|\[\d+\])*)\.(?:json_schema|schema): (?P<rest>.*)", re.S
)
STEP = re.compile(r"[a-z_]+|\d+")


class NestedSchema(NamedTuple):
    """What a reason is about."""

    schema: str
    lenient: bool | None
    """What its format says of that."""
    reason: str
    """Without the path."""


def nested_schema(tag: str, reason: str) -> NestedSchema | None:
    """Find the schema in a structural tag's text; None if the reason names none."""
    found = REASON.fullmatch(reason)
    if found is None:
        return None
    try:
        holder: Any = json.loads(tag)
        for step in STEP.findall(found["path"]):
            holder = holder[int(step) if step.isdigit() else step]
        schema = holder.get("json_schema", holder.get("schema"))
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None
    text = schema if isinstance(schema, str) else json.dumps(schema)
    return NestedSchema(text, holder.get("lenient"), found["rest"])
