"""Why the library refuses something, in words for a client."""

from __future__ import annotations

import re

TRACE = re.compile(r"\n<(?:non-verbose/|backtrace)>")
"""Where a reason ends and the library's own affairs begin."""
REASONS = {"NoExtensionBias": "no text matches it"}
"""What some of the library's reasons mean."""


def reason(message: str) -> str:
    """What a message of the library says."""
    said = TRACE.split(message)[0].strip()
    return REASONS.get(said, said) or "unknown error"
