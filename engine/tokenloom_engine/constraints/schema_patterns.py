"""The regular expressions in a JSON Schema."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from tokenloom_engine.constraints.base import InvalidConstraintError
from tokenloom_engine.constraints.regex_literal import check_last_escape
from tokenloom_engine.constraints.subschema import Path, part, pointer, walk

ATOM = re.compile(
    r"(?P<unreadable>\\[bB1-9]|\(\?<?[=!])|\[\^?\]?(?:\\.|[^\]\\])*\]|\\.|.", re.DOTALL
)
"""Look-around, word boundaries and backreferences are unreadable: no automaton has them."""
ENDS_IN_BACKSLASH = '\\\\"'
"""In the JSON of every string that ends in a backslash."""
HINT = re.compile(r"\\[bB1-9]|\(\?<?[=!]")
"""In every schema with an unreadable pattern, whose backslashes JSON doubles."""


def check_patterns(schema: str) -> None:
    """Raise InvalidConstraintError if a pattern ends within an escape: llguidance drops that.

    Its own reader finds whatever else is wrong.
    """
    if ENDS_IN_BACKSLASH not in schema:
        return
    for path, pattern in _patterns(_parsed(schema)):
        try:
            check_last_escape(pattern)
        except ValueError as error:
            raise InvalidConstraintError(str(error), pointer(path)) from None


def without_unreadable_patterns(schema: str) -> tuple[str, list[str]]:
    """Take the patterns that no back end can read out of the text of a schema.

    Returns the text, and a warning for each pattern that is left out.
    """
    if not HINT.search(schema):
        return schema, []
    root = _parsed(schema)
    paths = [path for path, pattern in _patterns(root) if _is_unreadable(pattern)]
    if not paths:
        return schema, []
    for path in paths:
        del part(root, path[:-1])[path[-1]]
    warnings = [
        "look-around, word boundaries and backreferences are not supported: the pattern is left "
        f"out (at {pointer(path)})"
        for path in paths
    ]
    return json.dumps(root), warnings


def _patterns(root: object) -> Iterator[tuple[Path, str]]:
    """All of them, with their paths."""
    for path, schema in walk(root):
        if isinstance(pattern := schema.get("pattern"), str):
            yield (*path, "pattern"), pattern
        if isinstance(entries := schema.get("patternProperties"), dict):
            yield from (((*path, "patternProperties", name), name) for name in entries)


def _is_unreadable(pattern: str) -> bool:
    return any(atom["unreadable"] for atom in ATOM.finditer(pattern))


def _parsed(schema: str) -> object:
    try:
        return json.loads(schema)
    except (ValueError, RecursionError):
        return None  # the back end says what is wrong
