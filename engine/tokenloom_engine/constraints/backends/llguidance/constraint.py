"""The state of one text in a grammar, by llguidance."""

from __future__ import annotations

import logging
from collections.abc import Sequence as Seq

import numpy as np
from llguidance import LLMatcher

from tokenloom_engine.constraints.backends.llguidance.late_matcher import LateMatcher
from tokenloom_engine.constraints.backends.llguidance.recollection import TooFarError
from tokenloom_engine.constraints.base import Bitmask, Captures
from tokenloom_engine.constraints.captures import CaptureReader
from tokenloom_engine.constraints.outlook import BITS
from tokenloom_engine.constraints.thermometer import Thermometer

logger = logging.getLogger(__name__)


class LlguidanceConstraint:
    """One matcher, what its last mask says of the tokens that follow, and what it captures.

    While it is dear, it says no more tokens to be forced than the mask does: one.
    """

    def __init__(self, late: LateMatcher) -> None:
        """What is wrong with the matcher's grammar is in `error`."""
        self._late = late
        self._cost = late.cost
        self._captures = CaptureReader(late.grammar) if "capture" in late.grammar else None
        self.thermometer: Thermometer | None = None
        """For a grammar that sets temperatures: the matcher cannot tell them."""
        self._forced: list[int] = []
        """What is known to follow."""

    @property
    def error(self) -> str | None:
        """See Constraint."""
        if (error := self._late.error) is not None:
            return error
        return self.thermometer.error if self.thermometer is not None else None

    @property
    def is_dear(self) -> bool:
        """See Constraint."""
        return self._cost.is_dear

    @property
    def is_accepting(self) -> bool:
        """See Constraint."""
        self._late.settle()
        return self._late.matcher.is_accepting()

    @property
    def is_terminated(self) -> bool:
        """See Constraint."""
        return self._late.is_stopped

    @property
    def temperature(self) -> float | None:
        """See Constraint."""
        return self.thermometer.temperature if self.thermometer is not None else None

    @property
    def matcher(self) -> LLMatcher:
        """What fills its masks, unless `fill_known` does."""
        return self._late.matcher

    def fill_known(self, bitmask: Bitmask, row: int) -> bool:
        """Write what is allowed if that is known already; else get ready to find out."""
        self._late.settle()
        if self._forced:
            bitmask[row] = 0
            bitmask[row, self._forced[0] // 32] = BITS[self._forced[0] % 32]
        return bool(self._forced)

    def learn(self, seconds: float, bitmask: Bitmask, row: int) -> None:
        """See what the mask that was just filled says of accepting the next token."""
        cost, matcher = self._cost, self._late.matcher
        cost.count_mask(seconds)
        if not cost.is_dear or matcher.is_stopped():
            return
        allowed = np.flatnonzero(np.unpackbits(bitmask[row].view(np.uint8), bitorder="little"))
        if len(allowed) > 1:
            return
        self._forced = [int(id) for id in allowed]
        if cost.may_be_long_text(seconds):
            begun = cost.begin()
            forced = matcher.compute_ff_tokens()
            if cost.end_long_text(begun, seconds):
                self._forced = forced

    def read_temperature(self) -> None:
        """Let `temperature` be that of the present state."""
        if self.thermometer is not None:
            self.thermometer.read(self._late.accepted)

    def accept_tokens(self, ids: Seq[int]) -> bool:
        """See Constraint."""
        if self._forced:
            is_forced = list(ids) == self._forced[: len(ids)]
            self._forced = self._forced[len(ids) :] if is_forced else []
        return self._late.accept(ids)

    def validate_tokens(self, ids: Seq[int], *, briefly: bool = False) -> int:
        """See Constraint."""
        if briefly:
            return self._glance(ids)
        self._late.settle()
        return self._late.matcher.validate_tokens(list(ids))

    def forced_tokens(self) -> list[int]:
        """See Constraint."""
        if not self._forced and not self._cost.is_dear:
            begun = self._cost.begin()
            self._forced = self._late.matcher.compute_ff_tokens()
            self._cost.end(begun)
        return list(self._forced)

    def rollback(self, count: int) -> None:
        """See Constraint."""
        num_accepted = len(self._late.accepted)
        if count > num_accepted:
            raise ValueError(f"{num_accepted} tokens were accepted, fewer than {count}")
        if count and self.error is None:
            self._forced = []
            self._late.rollback(count)

    def reset(self) -> None:
        """See Constraint."""
        self._late.reset()
        self._forced = []

    def fork(self) -> LlguidanceConstraint:
        """See Constraint. (LLMatcher's own copies share one lexer, and their masks take turns.)"""
        twin = LlguidanceConstraint(self._late.fresh())
        if self.thermometer is not None:
            twin.thermometer = self.thermometer.fork()
        twin.accept_tokens(self._late.accepted)
        return twin

    def captures(self) -> Captures:
        """See Constraint."""
        if self._captures is None:
            return {}
        if self.is_terminated:
            return self._captures.read(self._late.matcher.get_captures(), is_whole=True)
        try:
            matcher = self._late.at(self._late.accepted)
        except TooFarError:
            logger.warning("what a grammar captured took too long to find out, and is left out")
            return {}
        is_whole = matcher.is_accepting()
        if is_whole:  # what could go on is captured when it ends
            matcher.consume_token(self._late.tokenizer.eos_token)
        return self._captures.read(matcher.get_captures(), is_whole=is_whole)

    def _glance(self, ids: Seq[int]) -> int:
        """How many of these tokens would be accepted, as far as it can be told in no time."""
        most_seconds = self._cost.seconds_to_look()
        count, seconds = 0, 0.0
        while count < len(ids) and seconds < most_seconds:
            most = max(1, 2 * count)  # which may take ten times as long
            begun = self._cost.begin()
            count = self._late.matcher.validate_tokens(list(ids[:most]))
            seconds = self._cost.seconds_since(begun)
            if count < most:
                break
        return count
