"""Bitmask rows in the making: filled by other threads, and never waited for by a step for long.

How dear a grammar's next mask will be cannot be foretold; limits bound it, but not tightly. So
masks that turn out slow are filled one by one in a lane of their own, at a low priority, and
whoever needs one that is not ready sits out a step instead of holding up its neighbours. Most masks
take microseconds, less than to wake a thread; where the last one did, the next one is filled at
once.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Sequence as Seq
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain, groupby
from typing import NamedTuple

import numpy as np

from tokenloom_engine.constraints.base import Bitmask, Constraint
from tokenloom_engine.constraints.latency import Latency
from tokenloom_engine.constraints.low_priority import lower_priority
from tokenloom_engine.constraints.masks import CompiledConstraint, Mask
from tokenloom_engine.constraints.outlook import Outlook, Path, outlooks

logger = logging.getLogger(__name__)

FEW_ROWS = 8
"""So many are filled one after the other: more threads would take longer to wake."""
MANY_ROWS = 32
"""So many are filled together at most."""


class Filling(NamedTuple):
    """A mask that is to be filled."""

    compiled: CompiledConstraint
    constraint: Constraint
    bitmask: Bitmask
    row: int


class MaskFiller:
    """Fills the masks of many constraints at once, what may take long in threads of its own."""

    def __init__(self, words: int, num_threads: int, latency: Latency) -> None:
        """`words`: the length of a row."""
        self._latency = latency
        self._words = words
        # The forward wants the cores at the same time.
        self._num_quick = max(1, num_threads // 2)
        self._quick = ThreadPoolExecutor(self._num_quick, thread_name_prefix="bitmask")
        self._slow = ThreadPoolExecutor(
            num_threads, thread_name_prefix="slow-bitmask", initializer=lower_priority
        )
        self._seconds = 0.0
        self._lock = threading.Lock()

    def start(self, rows: Seq[tuple[CompiledConstraint, Constraint]]) -> list[Mask]:
        """Begin to fill a mask for each. The constraints must not be used until it is ready."""
        bitmask = self.allocate(len(rows))
        masks: dict[int, Mask] = {}
        brief: list[Filling] = []
        quick: list[Filling] = []
        limits = self._latency.limits
        for row, (compiled, constraint) in enumerate(rows):
            filling = Filling(compiled, constraint, bitmask, row)
            if compiled.is_slow or constraint.is_dear:
                masks[row] = self._fill_in_thread(self._slow, [filling])[0]
            else:
                (brief if compiled.is_brief(limits) else quick).append(filling)
        masks |= self._fill_soon(quick)
        masks |= self._fill_now(brief)
        return [masks[row] for row in range(len(rows))]

    def look_ahead(
        self, compiled: CompiledConstraint, constraint: Constraint, mask: Mask | None, path: Path
    ) -> Mask:
        """Begin to fill the mask of the present state, if it is not `mask`, and those behind it."""
        bitmask = self.allocate(1 + len(path.drafts))
        if mask is not None:
            bitmask[0] = mask.allowed
        ahead: list[Outlook] = []

        def fill() -> str | None:
            error = None
            if mask is None:
                error = self._fill(Filling(compiled, constraint, bitmask, 0))
            if error is None and constraint.error is None:
                ahead.extend(self._outlooks(compiled, constraint, path, bitmask))
            return error

        return Mask(bitmask[0], self._quick.submit(fill), ahead)

    def allocate(self, rows: int) -> Bitmask:
        """A bitmask that allows nothing yet."""
        return np.zeros((rows, self._words), dtype=np.int32)

    def take_seconds(self) -> float:
        """How long the fillings since the last call took, added up."""
        with self._lock:
            seconds, self._seconds = self._seconds, 0.0
        return seconds

    def close(self) -> None:
        """Let the threads end."""
        self._quick.shutdown(wait=False, cancel_futures=True)
        self._slow.shutdown(wait=False, cancel_futures=True)

    def _fill_now(self, brief: list[Filling]) -> dict[int, Mask]:
        masks: dict[int, Mask] = {}
        now = self._latency.clock.wall
        deadline = now() + self._latency.limits.own_masks
        shares = _of_one_backend(brief) if len(brief) > FEW_ROWS else [[f] for f in brief]
        for place, share in enumerate(shares):
            if now() > deadline:
                return masks | self._fill_soon(list(chain.from_iterable(shares[place:])))
            masks |= self._fill_together(share)
        return masks

    def _fill_together(self, fillings: list[Filling]) -> dict[int, Mask]:
        """Fill rows of one back end, and return when they are filled."""
        if len(fillings) > 1 and self._try_together(fillings):
            return {f.row: Mask.ready(f.bitmask[f.row]) for f in fillings}
        errors = {f.row: self._fill(f) for f in fillings}
        return {f.row: Mask.ready(f.bitmask[f.row], errors[f.row]) for f in fillings}

    def _try_together(self, fillings: list[Filling]) -> bool:
        clock, limits = self._latency.clock, self._latency.limits
        begun = clock.begin()
        rows = [(filling.constraint, filling.row) for filling in fillings]
        try:
            fillings[0].compiled.backend.fill_bitmasks(rows, fillings[0].bitmask)
        except Exception:
            logger.exception("masks could not be filled; trying each alone")
            return False
        seconds = clock.end(begun)
        # If it was long, whose fault that is shows when each is filled alone, in a thread.
        average = seconds / len(fillings) if seconds < limits.slow_mask else math.inf
        for filling in fillings:
            filling.compiled.count_batch(average)
        self._add_seconds(seconds)
        return True

    def _fill_soon(self, quick: list[Filling]) -> dict[int, Mask]:
        cheap = [filling for filling in quick if not filling.compiled.sets_temperature]
        share = max(FEW_ROWS, -(-len(cheap) // self._num_quick))
        shares = [cheap[first : first + share] for first in range(0, len(cheap), share)]
        shares += [[filling] for filling in quick if filling.compiled.sets_temperature]
        masks: dict[int, Mask] = {}
        for fillings in shares:
            started = self._fill_in_thread(self._quick, fillings)
            masks |= {f.row: mask for f, mask in zip(fillings, started, strict=True)}
        return masks

    def _fill_in_thread(self, threads: ThreadPoolExecutor, fillings: list[Filling]) -> list[Mask]:
        masks = [Mask(filling.bitmask[filling.row], Future()) for filling in fillings]

        def fill() -> None:
            for filling, mask in zip(fillings, masks, strict=True):
                mask.filled.set_result(self._fill(filling))

        threads.submit(fill)
        return masks

    def _fill(self, filling: Filling) -> str | None:
        """Fill a row; returns why that was not possible, if it was not."""
        compiled, constraint, bitmask, row = filling
        error = None
        clock = self._latency.clock
        begun = clock.begin()
        try:
            compiled.backend.fill_bitmasks([(constraint, row)], bitmask)
        except Exception as problem:  # whatever a library raises, it is this row's own
            logger.exception("a mask could not be filled")
            error = type(problem).__name__
        seconds = clock.end(begun)
        compiled.count_mask(seconds, self._latency.limits)
        self._add_seconds(seconds)
        return error

    def _outlooks(
        self, compiled: CompiledConstraint, constraint: Constraint, path: Path, bitmask: Bitmask
    ) -> list[Outlook]:
        start = (
            self._latency.clock.wall()
        )  # whatever the reason, who has to wait for guesses makes none
        found = outlooks(compiled.backend, constraint, path, bitmask)
        seconds = self._latency.clock.wall() - start
        compiled.count_look_ahead(seconds, len(path.drafts), self._latency.limits)
        self._add_seconds(seconds)
        return found

    def _add_seconds(self, seconds: float) -> None:
        with self._lock:
            self._seconds += seconds


def _of_one_backend(fillings: list[Filling]) -> list[list[Filling]]:
    """Share them out so that each share may be filled together."""
    shares: list[list[Filling]] = []
    by_backend = sorted(fillings, key=lambda filling: id(filling.compiled.backend))
    for _, group in groupby(by_backend, key=lambda filling: id(filling.compiled.backend)):
        own = list(group)
        shares += [own[first : first + MANY_ROWS] for first in range(0, len(own), MANY_ROWS)]
    return shares
