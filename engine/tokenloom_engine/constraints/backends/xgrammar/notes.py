"""What is to be said of a schema's translation."""

from __future__ import annotations

from typing import NoReturn

from tokenloom_engine.constraints.base import InvalidConstraintError
from tokenloom_engine.constraints.subschema import Path, pointer


def pattern_name(index: int) -> str:
    """A pattern that stands for another one."""
    return f"tokenloom-pattern-{index}-"


class Notes:
    """Collects warnings, or refuses at the first."""

    def __init__(self, *, lenient: bool) -> None:
        """`lenient`: leave out what cannot be said instead of refusing it."""
        self._lenient = lenient
        self.warnings: list[str] = []
        """What was left out, one line a keyword."""
        self.patterns: list[str] = []
        """What the patterns are, in EBNF, that the translation calls `pattern_name(index)`."""

    def keep_pattern(self, ebnf: str) -> str:
        """Note a pattern; returns what stands for it in the translation."""
        if ebnf not in self.patterns:
            self.patterns.append(ebnf)
        return pattern_name(self.patterns.index(ebnf))

    def leave_out(self, keyword: str, at: Path, reason: str = "") -> None:
        """Note that the schema's keyword is left out. Raises InvalidConstraintError if it must not.

        `reason` goes on from the keyword.
        """
        place = pointer((*at, keyword))
        what = f"{keyword} {reason}".rstrip()
        if not self._lenient:
            raise InvalidConstraintError(f"{what} is not supported by xgrammar", place)
        self.warnings.append(f"{what} is left out (at {place})")

    def refuse(self, at: Path, reason: str) -> NoReturn:
        """Raises InvalidConstraintError, lenient or not."""
        raise InvalidConstraintError(reason, pointer(at))
