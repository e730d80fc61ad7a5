"""How many drafts a step can afford."""

from __future__ import annotations

import math

from tokenloom_engine.drafts import Guess

FIRST_KNEE = 12.0
"""Before forwards were seen; two cores with bfloat16 in hardware."""
MOST_KNEE = 512.0
FEW_TOKENS = 4
MANY_TOKENS = range(16, 161)
"""Forwards over few tokens tell how long weights take to be read, those over many how long a token
takes; in chunks of prompts beyond these, a token takes less than it does as a draft."""
ENOUGH = 8
"""Forwards of each kind that are seen before they count."""
LEARNING_RATE = 0.1
FAR = 2.0
"""A forward that took so many times as long as others was held up, and tells little."""
ROW_TOKENS = 0.1
"""What a row costs beside the forward, as many tokens cost in it."""

STRETCH = 1.75
"""So many times as long as without drafts may a step take with them: neighbours wait for it."""


class DraftBudget:
    """Knows what a token more costs a step, and so with which odds a draft pays.

    A forward reads all weights, and computes with them for each token. The one or the other takes
    longer: over `knee` tokens, they take the same time. Forwards are taken to last
    hypot(knee, tokens), in units of what a token takes to be computed.
    """

    def __init__(self) -> None:
        self._reading = _Mean()
        self._token = _Mean()

    @property
    def knee(self) -> float:
        """Tokens that take as long to compute as the weights to read."""
        if min(self._reading.count, self._token.count) < ENOUGH:
            return FIRST_KNEE
        return min(MOST_KNEE, self._reading.value / max(self._token.value, 1e-9))

    def observe(self, num_tokens: int, seconds: float) -> None:
        """Learn from a forward; nothing by a clock that stands still."""
        if seconds <= 0:
            return
        if num_tokens <= FEW_TOKENS:
            self._reading.add(seconds)
        elif num_tokens in MANY_TOKENS and self._reading.count:
            squares = max(0.0, seconds**2 - self._reading.value**2)
            self._token.add(math.sqrt(squares) / num_tokens)

    def least_odds(self, num_tokens: int, num_sequences: int) -> float:
        """With which odds a draft more pays in a step of so many tokens.

        A draft that is right spares its sequence its part of a later step, which `num_sequences`
        share: all that are there, for those whose prompts are not in yet will decode by then.
        """
        knee, tokens = self.knee, num_tokens + 0.5
        cost = tokens / math.hypot(knee, tokens)
        return cost / (math.hypot(knee, num_sequences) / num_sequences + ROW_TOKENS)

    def share(self, guesses: list[Guess], num_tokens: int, num_sequences: int) -> list[int]:
        """How many of each guess's tokens are worth their cost, the most probable ones first.

        `num_tokens`: in the step without any.
        """
        counts = [0] * len(guesses)
        odds = [
            (odds, index) for index, guess in enumerate(guesses) for odds in guess.odds
        ]  # those of a guess fall, so they come in its order
        longest = STRETCH * math.hypot(self.knee, num_tokens)
        for draft, index in sorted(odds, reverse=True):
            if draft < self.least_odds(num_tokens, num_sequences):
                break
            if math.hypot(self.knee, num_tokens + 1) > longest:
                break
            counts[index] += 1
            num_tokens += 1
        return counts


class _Mean:
    """Of what was seen lately."""

    def __init__(self) -> None:
        self.value = 0.0
        self.count = 0

    def add(self, value: float) -> None:
        """Count a value; one that is far larger than the others, as if it were `FAR` times them."""
        if self.count:
            value = min(value, FAR * self.value)
        self.count += 1
        self.value += max(LEARNING_RATE, 1 / self.count) * (value - self.value)
