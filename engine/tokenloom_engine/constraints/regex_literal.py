"""Regular expressions, as they stand between the slashes of a Lark grammar."""

from __future__ import annotations

import re

ESCAPE_OR_SLASH = re.compile(r"\\.|/", re.DOTALL)
IN_LARK = {"/": r"\/", "\\\n": r"\n", "\\\r": r"\r"}
"""How what Lark would misread is written there. A bare new line stays: it ends a comment."""
ESCAPE = re.compile(r"\\.", re.DOTALL)


def regex_literal(pattern: str) -> str:
    """Write a regular expression as a term of Lark. Raises ValueError for an incomplete escape."""
    check_last_escape(pattern)
    quoted = ESCAPE_OR_SLASH.sub(lambda found: IN_LARK.get(found[0], found[0]), pattern)
    return f"/{quoted}/" if quoted else '""'


def check_last_escape(pattern: str) -> None:
    r"""Raise ValueError if a lone `\` ends the pattern: llguidance drops it."""
    if pattern.endswith("\\") and ESCAPE.sub("", pattern).endswith("\\"):
        raise ValueError(f"it ends within an escape, at character {len(pattern)}")


def original_index(pattern: str, index: int) -> int:
    """Find the index in `pattern` of what stands at `index` in its literal."""
    for found in ESCAPE_OR_SLASH.finditer(pattern):
        if found.start() >= index:
            break
        index -= len(IN_LARK.get(found[0], found[0])) - len(found[0])
    return index
