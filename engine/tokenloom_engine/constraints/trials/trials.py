"""The front's end: specs in, verdicts out, whatever the specs do to the process that tries them."""

from __future__ import annotations

import hashlib
import logging
import threading
from collections import OrderedDict
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import count
from typing import NamedTuple

import msgspec

from tokenloom_engine.constraints.base import InvalidConstraintError, TokenizerFacts
from tokenloom_engine.constraints.config import ConstraintConfig
from tokenloom_engine.constraints.spec import ConstraintSpec
from tokenloom_engine.constraints.trials.connection import TrialConnection
from tokenloom_engine.constraints.trials.messages import (
    TOO_SLOW,
    Trial,
    TrialSettings,
    Verdict,
    frame,
)

MAX_VERDICTS = 2048
"""Kept, the least recently used go first."""
MAX_KEPT_CHARACTERS = 2000
"""Verdicts that have a longer spec are not kept."""
MAX_ATTEMPTS = 2
"""How many trial processes may end over a trial before it fails."""

logger = logging.getLogger(__name__)


class TrialsBusyError(Exception):
    """The queue is full, or there was no CPU time for the trial."""


class TrialsEndedError(Exception):
    """The trial process ended, and so did the one after it. The next trial starts another."""


class Admission(NamedTuple):
    """A spec that can become a constraint."""

    spec: ConstraintSpec
    """What to compile: the one that was tried, or the same in other words."""
    warnings: list[str]
    """What a lenient one leaves out, one line a keyword."""


@dataclass(eq=False)
class _Order:
    """A spec that somebody waits for."""

    spec: ConstraintSpec
    client: str
    key: bytes
    future: Future[Admission]
    num_attempts: int = 0


class Trials:
    """Tries specs. Safe in any thread; one per model."""

    def __init__(self, tokenizer: TokenizerFacts, config: ConstraintConfig) -> None:
        """Start the trial process. It takes a second to be ready, and trials wait for it."""
        self._settings = frame(TrialSettings(tokenizer, config))
        self._ids = count()
        self._lock = threading.Lock()
        self._verdicts: OrderedDict[bytes, Verdict] = OrderedDict()
        self._is_closed = False
        self._connection = TrialConnection(self._settings)

    @property
    def pid(self) -> int:
        """Process id of the trial process."""
        return self._connection.pid

    def wait_until_ready(self) -> None:
        """Block until the trial process has loaded. Raises TrialsEndedError if it cannot."""
        self.start(ConstraintSpec("text")).result()

    def start(self, spec: ConstraintSpec, client: str = "") -> Future[Admission]:
        """Try a spec for a client, whose share of the queue is that of any other client.

        The future raises InvalidConstraintError with the reason and its place if the spec cannot
        become a constraint, TrialsBusyError, or TrialsEndedError. Cancelling it ends the trial.
        """
        key = hashlib.blake2b(msgspec.msgpack.encode(spec)).digest()
        order = _Order(spec, client, key, Future())
        with self._lock:
            known = self._verdicts.get(key)
            if known is not None:
                self._verdicts.move_to_end(key)
        if known is not None:
            _settle(order, known)
        else:
            self._try(order)
        return order.future

    def close(self) -> None:
        """End the trial process; futures that are not done raise TrialsEndedError."""
        with self._lock:
            self._is_closed = True
        self._connection.close()

    def _try(self, order: _Order) -> None:
        order.num_attempts += 1
        with self._lock:
            connection = self._working_connection()
        trial = Trial(next(self._ids), order.spec, order.client)
        connection.send(trial, lambda verdict: self._take(order, verdict))
        order.future.add_done_callback(lambda _: connection.withdraw(trial.id))

    def _take(self, order: _Order, verdict: Verdict | None) -> None:
        """Take a verdict; without one, the trial process has ended, and the spec is tried again."""
        has_attempts = order.num_attempts < MAX_ATTEMPTS and not self._is_closed
        if verdict is None and has_attempts and not order.future.cancelled():
            self._try(order)
            return
        if verdict is not None and _is_lasting(verdict):
            self._keep(order.key, verdict)
        _settle(order, verdict)

    def _working_connection(self) -> TrialConnection:
        """The present one, or another in the place of one that has ended."""
        if self._connection.has_ended and not self._is_closed:
            logger.error("the trial process ended; starting it again")
            self._connection = TrialConnection(self._settings)
        return self._connection

    def _keep(self, key: bytes, verdict: Verdict) -> None:
        with self._lock:
            self._verdicts[key] = verdict
            if len(self._verdicts) > MAX_VERDICTS:
                self._verdicts.popitem(last=False)


def _is_lasting(verdict: Verdict) -> bool:
    """Whether the next trial would come to the same, and the verdict is worth its memory."""
    is_chance = verdict.is_busy or verdict.refusal == TOO_SLOW
    return not is_chance and len(verdict.spec.value if verdict.spec else "") <= MAX_KEPT_CHARACTERS


def _settle(order: _Order, verdict: Verdict | None) -> None:
    future = order.future
    if not future.set_running_or_notify_cancel():
        return
    if verdict is None:
        future.set_exception(TrialsEndedError("the trial process ended"))
    elif verdict.is_busy:
        future.set_exception(TrialsBusyError())
    elif verdict.refusal is not None:
        future.set_exception(InvalidConstraintError(verdict.refusal))
    else:
        future.set_result(Admission(verdict.spec or order.spec, verdict.warnings))
