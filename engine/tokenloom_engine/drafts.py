"""Drafts: guesses of the next tokens, from what the text said before.

Texts repeat themselves and their prompts. So what followed the last tokens where they stood before
is a guess of what follows now (prompt lookup decoding: Saxena, 2023). A forward over a token and
its drafts costs little more than one over the token, and tells for each draft whether it is right.
"""

from __future__ import annotations

import math

ORDERS = (3, 2, 1)
"""Lengths of the beginnings that are looked up, best first."""
FIRST_ODDS = {3: 0.5, 2: 0.3, 1: 0.1}
"""How often a guess is taken to be right before any was seen to be."""
LEARNING_RATE = 0.1
MAX_READ = 2048
"""Tokens that are read in one step; a longer prompt is read over several."""
FIXED_TOKENS = 12
"""A step takes as long as so many tokens do, before it computes any."""
MAX_ROWS = 32
"""Where more sequences decode together, none of them drafts."""


class Drafter:
    """Reads one sequence's tokens as they come, and guesses on.

    For each token that was generated it sees whether its guess would have been right, drafted or
    not: so it knows the odds of its next guess without trying it.
    """

    def __init__(self, ids: list[int], most: int) -> None:
        """`ids`: the prompt; the list grows by what is generated. `most`: drafts at once."""
        self._ids = ids
        self._most = most
        self._prompt_len = len(ids)
        self._num_read = 0
        self._followed: dict[tuple[int, ...], int] = {}
        """Where the token stands that followed these, the last time."""
        self._odds = dict(FIRST_ODDS)
        """How probable a guess is to be right, by the length of what it rests on."""

    def draft(self, num_rows: int, room: int) -> list[int]:
        """`room` tokens at most that may follow. None where they would not pay for themselves.

        `num_rows`: sequences that decode in this step.
        """
        if num_rows > MAX_ROWS:
            return []
        self._read()
        guess = self._guess(len(self._ids)) if self._num_read == len(self._ids) else None
        if guess is None:
            return []
        order, start = guess
        count = min(self._most, room, worthwhile(self._odds[order], num_rows))
        drafts: list[int] = []
        for position in range(start, start + count):
            past_end = position - len(self._ids)
            drafts.append(self._ids[position] if past_end < 0 else drafts[past_end])
        return drafts

    def _read(self) -> None:
        end = min(len(self._ids), self._num_read + MAX_READ)
        for position in range(self._num_read, end):
            if position >= self._prompt_len:
                self._learn(position)
            for order in ORDERS:
                if order <= position:
                    self._followed[tuple(self._ids[position - order : position])] = position
        self._num_read = end

    def _learn(self, position: int) -> None:
        """See whether the token there would have been guessed."""
        guess = self._guess(position)
        if guess is not None:
            order, at = guess
            is_right = self._ids[at] == self._ids[position]
            self._odds[order] += LEARNING_RATE * (is_right - self._odds[order])

    def _guess(self, position: int) -> tuple[int, int] | None:
        """Where the token that may follow at `position` stands, and how much speaks for it."""
        for order in ORDERS:
            if order <= position:
                at = self._followed.get(tuple(self._ids[position - order : position]))
                if at is not None:
                    return order, at
        return None


def worthwhile(odds: float, num_rows: int) -> int:
    """How many drafts pay, if each is right with these odds where the one before it was.

    A token more lengthens a step by 1 / (FIXED_TOKENS + num_rows) of its time; a draft that is
    right adds 1 / num_rows to its tokens.
    """
    least = num_rows / (FIXED_TOKENS + num_rows)
    if odds < least:
        return 0
    return int(math.log(least) / math.log(odds))
