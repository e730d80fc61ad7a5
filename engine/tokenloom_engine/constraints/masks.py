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
import os
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Sequence as Seq
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokenloom_engine.constraints.base import Bitmask, Constraint, ConstraintBackend
from tokenloom_engine.constraints.outlook import Outlook, Path, outlooks
from tokenloom_engine.constraints.spec import ConstraintSpec

logger = logging.getLogger(__name__)

SLOW_SECONDS = 0.005
"""What takes longer to fill goes to the slow lane until it is quick again."""
BRIEF_SECONDS = 0.0005
"""What took less is filled by the caller the next time."""
FEW_ROWS = 8
"""More are sooner filled by threads."""
MOST_SECONDS = 0.001
"""After so long the caller leaves what is left to a thread."""
LOW_PRIORITY = 10
"""Niceness of threads whose work nobody's next token waits for."""


@dataclass(slots=True)
class CompiledConstraint:
    """A spec that compiled, and its idle constraints, warm from earlier sequences."""

    spec: ConstraintSpec
    backend: ConstraintBackend
    pool: list[Constraint] = field(default_factory=list)
    is_slow: bool = False
    """Whether its last mask took long, alone or in company."""
    seconds: float = math.inf
    """What its last mask took, on average over those that were filled with it."""
    sets_temperature: bool = False
    """Whether its masks come with temperatures, and so at twice the cost."""

    @property
    def is_brief(self) -> bool:
        """Whether the next mask hardly takes longer than to have it filled by a thread."""
        return self.seconds < BRIEF_SECONDS and not (self.is_slow or self.sets_temperature)


Failures = dict[int, str]
"""Why rows could not be filled."""


class Mask(NamedTuple):
    """The tokens that a constraint allows in one of its states, once they are known."""

    allowed: NDArray[np.int32]
    """[ceil(vocab_size / 32)]. Not to be read before it is ready."""
    row: int
    filled: Future[Failures]
    """Done when the row is filled. Nobody else may use the constraint before."""
    ahead: Seq[Outlook] = ()
    """What it says of the states after drafts, if that was asked. Not to be read before, either."""

    @property
    def is_ready(self) -> bool:
        """Whether the row is filled, or never will be."""
        return self.filled.done()

    @property
    def error(self) -> str | None:
        """Why a row that is ready could not be filled; None if it was."""
        return self.filled.result().get(self.row)

    @classmethod
    def ready(cls, allowed: NDArray[np.int32]) -> Mask:
        """One that is filled already."""
        filled: Future[Failures] = Future()
        filled.set_result({})
        return cls(allowed, 0, filled)


def wait_for(masks: Seq[Mask], seconds: float) -> None:
    """Return when all are ready, or the time is over."""
    unready = [mask.filled for mask in masks if not mask.filled.done()]
    if unready:
        wait(unready, seconds)


class MaskFiller:
    """Fills the masks of many constraints at once, what may take long in threads of its own."""

    def __init__(self, words: int, num_threads: int) -> None:
        """`words`: the length of a row."""
        self._words = words
        self._quick = ThreadPoolExecutor(1, thread_name_prefix="bitmask")
        self._slow = ThreadPoolExecutor(
            num_threads, thread_name_prefix="slow-bitmask", initializer=lower_priority
        )
        self._seconds = 0.0
        self._lock = threading.Lock()

    def start(self, rows: Seq[tuple[CompiledConstraint, Constraint]]) -> list[Mask]:
        """Begin to fill a mask for each. The constraints must not be used until it is ready."""
        bitmask = self.allocate(len(rows))
        masks: list[Mask | None] = [None] * len(rows)
        brief: list[int] = []
        quick: list[int] = []
        for row, (compiled, _) in enumerate(rows):
            if compiled.is_slow:
                filled = self._slow.submit(self._fill, rows, [row], bitmask)
                masks[row] = Mask(bitmask[row], row, filled)
            elif compiled.is_brief:
                brief.append(row)
            else:
                quick.append(row)
        if len(brief) > FEW_ROWS:
            quick, brief = quick + brief, []
        self._fill_soon(rows, quick, bitmask, masks)
        self._fill_now(rows, brief, bitmask, masks)
        return [mask for mask in masks if mask is not None]

    def look_ahead(
        self, compiled: CompiledConstraint, constraint: Constraint, mask: Mask | None, path: Path
    ) -> Mask:
        """Begin to fill the mask of the present state, if it is not `mask`, and those behind it."""
        bitmask = self.allocate(1 + len(path.drafts))
        if mask is not None:
            bitmask[0] = mask.allowed
        ahead: list[Outlook] = []

        def fill() -> Failures:
            row = compiled, constraint
            failures = self._fill([row], [0], bitmask) if mask is None else {}
            if not failures and constraint.error is None:
                ahead.extend(self._outlooks(compiled, constraint, path, bitmask))
            return failures

        return Mask(bitmask[0], 0, self._quick.submit(fill), ahead)

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

    def _fill_now(
        self,
        rows: Seq[tuple[CompiledConstraint, Constraint]],
        brief: list[int],
        bitmask: Bitmask,
        masks: list[Mask | None],
    ) -> None:
        deadline = time.perf_counter() + MOST_SECONDS
        for place, row in enumerate(brief):
            if time.perf_counter() > deadline:
                self._fill_soon(rows, brief[place:], bitmask, masks)
                break
            filled: Future[Failures] = Future()
            filled.set_result(self._fill(rows, [row], bitmask))
            masks[row] = Mask(bitmask[row], row, filled)

    def _fill_soon(
        self,
        rows: Seq[tuple[CompiledConstraint, Constraint]],
        quick: list[int],
        bitmask: Bitmask,
        masks: list[Mask | None],
    ) -> None:
        groups: dict[tuple[int, bool], list[int]] = defaultdict(list)
        for row in quick:
            compiled = rows[row][0]
            groups[id(compiled.backend), compiled.sets_temperature].append(row)
        for _, group in sorted(groups.items(), key=lambda item: item[0][1]):  # the cheap ones first
            filled = self._quick.submit(self._fill, rows, group, bitmask)
            for row in group:
                masks[row] = Mask(bitmask[row], row, filled)

    def _fill(
        self,
        rows: Seq[tuple[CompiledConstraint, Constraint]],
        group: list[int],
        bitmask: Bitmask,
    ) -> Failures:
        """Fill the rows of a group that have one back end."""
        start = time.perf_counter()
        backend = rows[group[0]][0].backend
        failures: Failures = {}
        try:
            backend.fill_bitmasks([(rows[row][1], row) for row in group], bitmask)
        except Exception:
            logger.exception("masks could not be filled; trying each alone")
            for row in group:
                try:
                    backend.fill_bitmasks([(rows[row][1], row)], bitmask)
                except Exception as error:
                    failures[row] = type(error).__name__
        seconds = time.perf_counter() - start
        for row in group:  # who of them it was shows when each is filled alone
            rows[row][0].is_slow = seconds > SLOW_SECONDS
            rows[row][0].seconds = seconds / len(group)
        self._add_seconds(seconds)
        return failures

    def _outlooks(
        self, compiled: CompiledConstraint, constraint: Constraint, path: Path, bitmask: Bitmask
    ) -> list[Outlook]:
        start = time.perf_counter()
        found = outlooks(compiled.backend, constraint, path, bitmask)
        seconds = time.perf_counter() - start
        compiled.is_slow |= seconds > SLOW_SECONDS * len(path.drafts)
        self._add_seconds(seconds)
        return found

    def _add_seconds(self, seconds: float) -> None:
        with self._lock:
            self._seconds += seconds


def lower_priority() -> None:
    """Let all other threads go before this one, where the system can do that for a thread."""
    if sys.platform == "linux":
        thread = threading.get_native_id()
        # Who was started with less may not take more.
        niceness = max(LOW_PRIORITY, os.getpriority(os.PRIO_PROCESS, thread))
        os.setpriority(os.PRIO_PROCESS, thread, niceness)
