"""Earlier states of a matcher, for what it cannot take back."""

from __future__ import annotations

from llguidance import LLMatcher

from tokenloom_engine.constraints.latency import Latency

LAG = 32
"""A matcher that is kept stays so many tokens behind, and is never twice as far: going back over
drafts, or a run of forced tokens, is a matter of a few."""
FEW = 4
"""Tokens between two looks at the clock."""


class TooFarError(Exception):
    """It would take too long to come to a state again."""


class Recollection:
    """The initial state, and a later one of a matcher that only ever accepted tokens.

    A matcher that was asked for masks or forced tokens has run ahead, over text that must follow.
    """

    def __init__(self, initial: LLMatcher, latency: Latency, *, follows: bool) -> None:
        """`follows`: whether states on the way are kept, so that none is far."""
        self._initial = initial
        self._latency = latency
        self.follows = follows
        self.forget()

    def forget(self) -> None:
        """Keep the initial state alone."""
        self.matcher, self._count = self._initial, 0

    def keep(self, matcher: LLMatcher, count: int) -> None:
        """Take a state that may be gone back to, after so many tokens."""
        self.matcher, self._count = matcher, count

    def follow(self, accepted: list[int]) -> None:
        """Let the state that is kept not fall too far behind."""
        if self.follows and len(accepted) - self._count >= 2 * LAG:
            matcher = self.matcher if self._count else self._initial.deep_copy()
            matcher.consume_tokens(accepted[self._count : self._count + LAG])
            self.keep(matcher, self._count + LAG)

    def behind(self, accepted: list[int]) -> LLMatcher:
        """A matcher that accepted these tokens. Raises TooFarError."""
        if len(accepted) < self._count:
            self.forget()
        matcher = self.matcher.deep_copy()
        cpu_seconds, most = self._latency.clock.cpu, self._latency.limits.recollection
        start = cpu_seconds()
        for first in range(self._count, len(accepted), FEW):
            if cpu_seconds() - start > most:  # whoever asks holds all sequences up
                raise TooFarError
            matcher.consume_tokens(accepted[first : first + FEW])
        return matcher

    def last(self, accepted: list[int]) -> tuple[LLMatcher, list[int]]:
        """A copy of what is kept, and the tokens from there on."""
        return self.matcher.deep_copy(), accepted[self._count :]
