"""How deeply a JSON text is nested, found without recursion and before anybody parses it."""

from __future__ import annotations

import re

import numpy as np

STRINGS = re.compile(r'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
NO_BRACKETS = re.compile(r"[^][{}]+")
STEPS = np.full(256, -1)
"""By bracket: whether it leads deeper."""
STEPS[list(b"[{")] = 1


def nesting(text: str) -> int:
    """The most arrays and objects that are open at once. Text that is not JSON has one as well."""
    brackets = NO_BRACKETS.sub("", STRINGS.sub("", text)).encode()
    steps = STEPS[np.frombuffer(brackets, np.uint8)]
    return int(np.cumsum(steps).max(initial=0))
