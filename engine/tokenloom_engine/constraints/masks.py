"""Masks: the tokens that constraints allow, once they are known."""

from __future__ import annotations

import math
from collections.abc import Sequence as Seq
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokenloom_engine.constraints.base import Constraint, ConstraintBackend
from tokenloom_engine.constraints.latency import FAR, LatencyLimits, LatencyTracker
from tokenloom_engine.constraints.outlook import Outlook
from tokenloom_engine.constraints.spec import ConstraintSpec

TRIED_MASKS = 256
"""After so many without a slow one among them a grammar is known to be quick. One that is not may
have a slow part that no text came to yet."""
TRIED_AGAIN = 4
"""So many times as many masks it takes after slow ones."""


def _ended(error: str | None) -> Future[str | None]:
    filled: Future[str | None] = Future()
    filled.set_result(error)
    return filled


FILLED = _ended(None)
"""That of all masks which nobody had to wait for: a new one takes longer than some masks, and each
question to it takes a lock."""


@dataclass(slots=True)
class CompiledConstraint:
    """A spec that compiled, and its idle constraints, warm from earlier sequences."""

    spec: ConstraintSpec
    backend: ConstraintBackend
    pool: list[Constraint] = field(default_factory=list)
    seconds: float = math.inf
    """What its last mask took: of a core's time, where others may have used the cores, too."""
    sets_temperature: bool = False
    """Whether its masks come with temperatures, and so at twice the cost."""
    num_tried: int = 0
    """How many of its masks were filled since it counted as slow."""
    masks: LatencyTracker = field(default_factory=LatencyTracker)
    look_aheads: LatencyTracker = field(default_factory=LatencyTracker)
    """Of its masks behind drafts, all together."""

    @property
    def is_slow(self) -> bool:
        """Whether masks took long, so that the next one may."""
        return self.masks.is_slow

    def is_brief(self, limits: LatencyLimits) -> bool:
        """Whether the next mask hardly takes longer than to have it filled by a thread."""
        is_tried = self.num_tried >= TRIED_MASKS
        return is_tried and self.seconds < limits.brief_mask and not self.sets_temperature

    def judge_mask(self, seconds: float, limits: LatencyLimits) -> None:
        """Learn whether masks are slow."""
        self.masks.observe(seconds, limits.slow_mask, far=FAR)

    def count_mask(self, seconds: float, limits: LatencyLimits) -> None:
        """Learn from a mask."""
        self.seconds = seconds
        self.judge_mask(seconds, limits)
        self.num_tried = (1 - TRIED_AGAIN) * TRIED_MASKS if self.is_slow else self.num_tried + 1
        if self.look_aheads.is_slow:
            self.look_aheads.skip()

    def count_batch(self, average: float) -> None:
        """Learn from a mask that was filled together with others. Whose fault it is if that took
        long shows when each is filled alone: an infinite average.
        """
        self.seconds = average
        self.num_tried += 1

    def count_look_ahead(self, seconds: float, num_drafts: int, limits: LatencyLimits) -> None:
        """Learn from the masks behind drafts."""
        self.look_aheads.observe(seconds, limits.slow_mask * num_drafts)


class Mask(NamedTuple):
    """The tokens that a constraint allows in one of its states, once they are known."""

    allowed: NDArray[np.int32]
    """[ceil(vocab_size / 32)]. Not to be read before it is ready."""
    filled: Future[str | None]
    """Done when the row is filled, or could not be: then it says why. Nobody else may use the
    constraint before."""
    ahead: list[Outlook] | None = None
    """What it says of the states after drafts; None if that was not asked. Not to be read before,
    either."""

    @property
    def is_ready(self) -> bool:
        """Whether the row is filled, or never will be."""
        return self.filled is FILLED or self.filled.done()

    @property
    def error(self) -> str | None:
        """Why a row that is ready could not be filled; None if it was."""
        return None if self.filled is FILLED else self.filled.result()

    @classmethod
    def ready(cls, allowed: NDArray[np.int32], error: str | None = None) -> Mask:
        """One that is filled already."""
        return cls(allowed, FILLED if error is None else _ended(error))


def wait_for(masks: Seq[Mask], seconds: float) -> None:
    """Return when all are ready, or the time is over."""
    unready = [mask.filled for mask in masks if not mask.is_ready]
    if unready:
        wait(unready, seconds)
