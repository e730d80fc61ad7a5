"""Sequences that wait for their constraints to compile."""

from __future__ import annotations

import logging
import time
from concurrent.futures import Future

from tokenloom_engine.constraints.base import InvalidConstraintError
from tokenloom_engine.constraints.factory import ConstraintFactory, Lease
from tokenloom_engine.constraints.spec import ConstraintSpec
from tokenloom_engine.request_id import working_for
from tokenloom_engine.sequence import Sequence

MAX_WAIT_SECONDS = 300.0
"""How long a sequence may wait for its constraint, whatever else takes the CPU time."""

logger = logging.getLogger(__name__)


class PendingConstraints:
    """Has constraints compiled in other threads, and looks for those that are done."""

    def __init__(self, factory: ConstraintFactory, timeout_seconds: float) -> None:
        """`timeout_seconds`: CPU time that a constraint may take to compile."""
        self._factory = factory
        self._timeout_seconds = timeout_seconds
        self._waiting: dict[int, tuple[Sequence, ConstraintSpec, Future[Lease], float]] = {}
        """By sequence: its spec, its constraint to come, and when to give up on it."""

    def __len__(self) -> int:
        """How many sequences wait."""
        return len(self._waiting)

    def start(self, sequence: Sequence, spec: ConstraintSpec) -> None:
        """Begin to make a constraint for a sequence."""
        deadline = time.monotonic() + MAX_WAIT_SECONDS
        lease = self._factory.lease(spec)
        self._waiting[sequence.submit.id] = sequence, spec, lease, deadline

    def take_settled(self) -> list[Sequence]:
        """Those that have their constraints now, and those that are refused one."""
        settled = []
        for sequence, spec, future, deadline in list(self._waiting.values()):
            if future.done():
                del self._waiting[sequence.submit.id]
                _constrain(sequence, future)
                settled.append(sequence)
            elif self._factory.compile_cpu_seconds(spec) > self._timeout_seconds:
                self.drop(sequence)
                sequence.refuse("grammar is not valid: it took too long to compile")
                settled.append(sequence)
            elif time.monotonic() > deadline:
                self.drop(sequence)
                sequence.fail("the server had no time to compile the grammar")
                settled.append(sequence)
        return settled

    def drop(self, sequence: Sequence) -> None:
        """Make no constraint for it any more, if one was being made."""
        waiting = self._waiting.pop(sequence.submit.id, None)
        if waiting is not None:
            waiting[2].add_done_callback(self._return_unused)

    def _return_unused(self, future: Future[Lease]) -> None:
        if not future.cancelled() and future.exception() is None:
            lease = future.result()
            self._factory.return_constraint(lease.compiled, lease.constraint)


def _constrain(sequence: Sequence, future: Future[Lease]) -> None:
    try:
        sequence.constrain(future.result())
    except InvalidConstraintError as error:
        sequence.refuse(f"grammar is not valid: {error}")
    except Exception as error:
        with working_for(sequence.submit.request_id):
            logger.exception("a constraint failed to compile; its sequence ends")
        sequence.fail(f"the constraint failed: {type(error).__name__}")
