"""Drafts: guesses of the next tokens, from what the text said before.

Texts repeat themselves and their prompts. So what followed the last tokens where they stood before
is a guess of what follows now (prompt lookup decoding: Saxena, 2023). A forward over a token and
its drafts costs little more than one over the token, and tells for each draft whether it is right.
"""

from __future__ import annotations

from dataclasses import dataclass, field

ORDERS = (3, 2, 1)
"""Lengths of the beginnings that are looked up, best first."""
RUNS = (1, 4)
"""Where the last guess was right, and where the last four were, the next one has other odds."""
FIRST_ODDS = {3: (0.25, 0.5, 0.8), 2: (0.1, 0.3, 0.5), 1: (0.03, 0.1, 0.2)}
"""How often a guess is taken to be right before any was seen to be, by order and run."""
LEARNING_RATE = 0.1
DEFAULT_MOST = 16
"""At once, where logits do not depend on what else is in the forward. Odds say how many pay."""
MAX_READ = 512
"""Tokens that are read in one step; a longer prompt is read over several."""


@dataclass(slots=True)
class Guess:
    """What may follow a sequence's last token."""

    ids: list[int] = field(default_factory=list)
    odds: list[float] = field(default_factory=list)
    """For each of the ids, how probable it is that it and all before it are right."""


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
        self._next: tuple[int, int] | None = None
        """What the next token may be: where it stands, and the order of what speaks for it."""
        self._run = 0
        """How many guesses in a row were right."""
        self._odds = {order: list(odds) for order, odds in FIRST_ODDS.items()}

    def guess(self, room: int, least: float) -> Guess:
        """`room` tokens at most that may follow, as long as their odds are not below `least`."""
        self._read()
        guess = Guess()
        if self._next is None or self._num_read < len(self._ids):
            return guess
        start, order = self._next
        odds = 1.0
        for index in range(min(self._most, room)):
            odds *= self._odds[min(order + index, ORDERS[0])][_run_class(self._run + index)]
            if odds < least:
                break
            past_end = start + index - len(self._ids)
            guess.ids.append(self._ids[start + index] if past_end < 0 else guess.ids[past_end])
            guess.odds.append(odds)
        return guess

    def _read(self) -> None:
        end = min(len(self._ids), self._num_read + MAX_READ)
        for position in range(self._num_read, end):
            if position >= self._prompt_len:
                self._learn(self._ids[position])
            for order in ORDERS:
                if order <= position:
                    self._followed[tuple(self._ids[position - order : position])] = position
            if position + 1 >= self._prompt_len:
                self._next = self._look_up(position + 1)
        self._num_read = end

    def _learn(self, id: int) -> None:
        """See whether the token that came would have been guessed."""
        if self._next is None:
            self._run = 0
            return
        at, order = self._next
        is_right = self._ids[at] == id
        odds, run = self._odds[order], _run_class(self._run)
        odds[run] += LEARNING_RATE * (is_right - odds[run])
        self._run = self._run + 1 if is_right else 0

    def _look_up(self, position: int) -> tuple[int, int] | None:
        for order in ORDERS:
            if order <= position:
                at = self._followed.get(tuple(self._ids[position - order : position]))
                if at is not None:
                    return at, order
        return None


def _run_class(run: int) -> int:
    return sum(run >= least for least in RUNS)
