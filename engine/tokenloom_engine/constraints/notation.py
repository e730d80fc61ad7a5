"""The notations of grammars."""

from __future__ import annotations

import re
from typing import Literal

Notation = Literal["gbnf", "lark", "llguidance"]

GBNF_RULE = re.compile(r"^\s*[\w-]+\s*::=", re.MULTILINE)


def grammar_notation(text: str) -> Notation:
    """Tell the notations apart: only GBNF has rules with `::=`, only llguidance's is an object."""
    if GBNF_RULE.search(text):
        return "gbnf"
    return "llguidance" if text.lstrip().startswith("{") else "lark"
