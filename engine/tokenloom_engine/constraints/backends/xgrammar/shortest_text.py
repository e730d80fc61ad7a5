"""How long the texts of a grammar must be.

xgrammar looks for forced text to its end, and hangs where there is none: in a grammar such as
`root ::= "a" root`. A text that can end is forced no further than to its nearest end.
"""

from __future__ import annotations

import re
from collections import defaultdict, deque
from collections.abc import Iterator
from math import inf
from typing import Any

import msgspec

VERSION = "v18"
"""Of the library's form of a grammar that is read here."""
BYTE_STRING, CHARACTER_CLASS, STAR, EMPTY, RULE, SEQUENCE, CHOICES, TAG_DISPATCH, REPEAT = range(9)
REGEX = 12

MAX_EVALUATIONS = 20
"""How often a rule is looked at, on average, before it is given up."""
COUNT = re.compile(rb"\{(\d+)")
MAX_COUNT = 1000


def longest_shortest_text(serialized: str) -> float:
    """The most bytes that the shortest text of any of a grammar's rules has.

    `serialized` is the library's own form. Infinity if a rule has no text that ends, or if that
    cannot be told.
    """
    grammar = msgspec.json.decode(serialized)
    if grammar["__VERSION__"] != VERSION:
        return inf
    return _Grammar(grammar).run()


class _Grammar:
    def __init__(self, grammar: dict[str, Any]) -> None:
        self._data: list[int] = grammar["grammar_expr_data"]
        self._starts: list[int] = grammar["grammar_expr_indptr"]
        self._bodies: list[int] = [rule[1] for rule in grammar["rules"]]
        self._lengths: list[float] = [inf] * len(self._bodies)

    def run(self) -> float:
        users: dict[int, set[int]] = defaultdict(set)
        for rule, body in enumerate(self._bodies):
            for used in self._rules_in(body):
                users[used].add(rule)
        waiting = deque(reversed(range(len(self._bodies))))  # the used ones come last
        is_waiting = [True] * len(self._bodies)
        for _ in range(MAX_EVALUATIONS * len(self._bodies)):
            if not waiting:
                return max(self._lengths)
            rule = waiting.popleft()
            is_waiting[rule] = False
            length = self._length(self._bodies[rule])
            if length < self._lengths[rule]:
                self._lengths[rule] = length
                again = [user for user in users[rule] if not is_waiting[user]]
                waiting.extend(again)
                for user in again:
                    is_waiting[user] = True
        return inf

    def _expression(self, index: int) -> tuple[int, list[int]]:
        start, data = self._starts[index], self._data
        return data[start], data[start + 2 : start + 2 + data[start + 1]]

    def _rules_in(self, index: int) -> Iterator[int]:
        kind, values = self._expression(index)
        if kind in (RULE, REPEAT):
            yield values[0]
        elif kind in (SEQUENCE, CHOICES):
            for value in values:
                yield from self._rules_in(value)

    def _length(self, index: int) -> float:
        kind, values = self._expression(index)
        if kind == BYTE_STRING:
            return len(values)
        if kind == CHARACTER_CLASS:
            return 1
        if kind == RULE:
            return self._lengths[values[0]]
        if kind == SEQUENCE:
            return sum(map(self._length, values))
        if kind == CHOICES:
            return min(map(self._length, values))
        if kind == REPEAT:
            return values[1] * self._lengths[values[0]] if values[1] else 0
        if kind == REGEX:
            counts = map(int, COUNT.findall(bytes(values[1:])))
            return inf if any(count > MAX_COUNT for count in counts) else 1
        return 0  # a star, nothing, or free text
