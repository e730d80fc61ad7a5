"""Masks: the tokens that constraints allow, once they are known."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence as Seq
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokenloom_engine.constraints.base import Constraint, ConstraintBackend
from tokenloom_engine.constraints.outlook import Outlook
from tokenloom_engine.constraints.spec import ConstraintSpec

SLOW_SECONDS = 0.005
"""What takes longer to fill goes to the slow lane until it is quick again."""
BRIEF_SECONDS = 0.0005
"""What took less is filled by the caller the next time."""
TRIED_MASKS = 256
"""After so many without a slow one among them a grammar is known to be quick. One that is not may
have a slow part that no text came to yet."""


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
    is_slow: bool = False
    """Whether its last mask took long."""
    seconds: float = math.inf
    """What its last mask took: of a core's time, where others may have used the cores, too."""
    sets_temperature: bool = False
    """Whether its masks come with temperatures, and so at twice the cost."""

    num_tried: int = 0
    """How many of its masks were filled and none was slow."""

    @property
    def is_brief(self) -> bool:
        """Whether the next mask hardly takes longer than to have it filled by a thread."""
        is_tried = self.num_tried >= TRIED_MASKS
        return is_tried and self.seconds < BRIEF_SECONDS and not self.sets_temperature

    def count_mask(self, seconds: float, *, is_slow: bool) -> None:
        """Learn from a mask. One that ever was slow is never brief again."""
        self.seconds = seconds
        self.is_slow = is_slow
        self.num_tried = -sys.maxsize if is_slow else self.num_tried + 1


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
