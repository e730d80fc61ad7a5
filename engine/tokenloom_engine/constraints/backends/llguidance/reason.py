"""Why the library refuses something, in words for a client."""

from __future__ import annotations

import re

from tokenloom_engine.constraints.regex_literal import original_index

TRACE = re.compile(r"\n<(?:non-verbose/|backtrace)>")
"""Where a reason ends and the library's own affairs begin."""
REASONS = {"NoExtensionBias": "no text matches it"}
"""What some of the library's reasons mean."""
REGEX_FAULT = re.compile(
    r"regex parse error:\n(?: {4}.*\n {4}(?P<margin> *)\^|(?:.*\n)*?(?P<line>\d+): .*\n *\^)?"
    r"(?:.*\n)*?error: (?P<words>.*)"
)
"""A picture of the regular expression with the place marked below it, and what is wrong. Where
the expression has several lines, they are numbered."""
TERM = re.compile(r"at \d+\(\d+\): ")
"""The line and the column of the term of a grammar that is at fault."""


def reason(message: str, pattern: str | None = None) -> str:
    """Shorten a message of the library. `pattern`: the regular expression that it is about."""
    said = TRACE.split(message)[0].strip()
    if found := REGEX_FAULT.search(said):
        term = TERM.match(said)
        before = term[0] if term and pattern is None else ""
        return f"{before}{found['words']}{_place(found, pattern)}"
    return REASONS.get(said, said) or "unknown error"


def _place(found: re.Match[str], pattern: str | None) -> str:
    if found["line"] is not None:
        return f", in line {found['line']} of the regular expression"
    if found["margin"] is None:
        return ""
    index = len(found["margin"])
    return f", at character {1 + (index if pattern is None else original_index(pattern, index))}"
