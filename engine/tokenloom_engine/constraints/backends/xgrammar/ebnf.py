"""Pieces of grammars in xgrammar's EBNF."""

from __future__ import annotations

from collections.abc import Iterable

LAST = 0x10FFFF


class Characters:
    """A set of characters."""

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        """`ranges`: the first and the last of each."""
        self.ranges = tuple(_merged(ranges))

    @classmethod
    def of(cls, text: str) -> Characters:
        """Those of a text."""
        return cls((ord(character), ord(character)) for character in text)

    def __or__(self, other: Characters) -> Characters:
        return Characters((*self.ranges, *other.ranges))

    def __invert__(self) -> Characters:
        return Characters(_gaps(self.ranges))

    def __sub__(self, other: Characters) -> Characters:
        return Characters(
            (max(first, other_first), min(last, other_last))
            for first, last in self.ranges
            for other_first, other_last in _gaps(other.ranges)
            if max(first, other_first) <= min(last, other_last)
        )

    def __bool__(self) -> bool:
        return bool(self.ranges)

    @property
    def only(self) -> str | None:
        """The one that there is, if it is only one."""
        match self.ranges:
            case ((first, last),) if first == last:
                return chr(first)
            case _:
                return None

    def __str__(self) -> str:
        """As EBNF: by what it leaves out, if that is no more. (xgrammar knows JSON's by that.)"""
        left_out = tuple(_gaps(self.ranges))
        if len(left_out) <= len(self.ranges):
            return f"[^{_class(left_out)}]"
        return f"[{_class(self.ranges)}]"


def literal(text: str) -> str:
    """A text as it stands."""
    return f'"{"".join(map(_quoted, text))}"'


def one_of(choices: Iterable[str]) -> str:
    """What one of these describes."""
    return f"({' | '.join(choices)})"


def _class(ranges: Iterable[tuple[int, int]]) -> str:
    return "".join(
        _escaped(first) if first == last else f"{_escaped(first)}-{_escaped(last)}"
        for first, last in ranges
    )


def _quoted(character: str) -> str:
    is_plain = " " <= character <= "~" and character not in '"\\'
    return character if is_plain else _escaped(ord(character))


def _escaped(code: int) -> str:
    return f"\\U{code:08X}"


def _merged(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = merged[-1][0], max(last, merged[-1][1])
        else:
            merged.append((first, last))
    return merged


def _gaps(ranges: Iterable[tuple[int, int]]) -> Iterable[tuple[int, int]]:
    start = 0
    for first, last in ranges:
        if start < first:
            yield start, first - 1
        start = last + 1
    if start <= LAST:
        yield start, LAST
