"""The front's end: specs in, verdicts out, whatever the specs do to the process that tries them."""

from __future__ import annotations

import hashlib
import logging
import os
import subprocess
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from itertools import count
from subprocess import PIPE
from typing import IO, NamedTuple

import msgspec

from tokenloom_engine.child_environment import child_environment
from tokenloom_engine.constraints.base import InvalidConstraintError, TokenizerFacts
from tokenloom_engine.constraints.config import ConstraintConfig
from tokenloom_engine.constraints.spec import ConstraintSpec
from tokenloom_engine.constraints.trials.messages import (
    TOO_SLOW,
    Trial,
    TrialSettings,
    Verdict,
    Withdrawal,
    frame,
)
from tokenloom_engine.frames import FrameBuffer

COMMAND = (sys.executable, "-m", "tokenloom_engine.constraints.trials.process")
MAX_VERDICTS = 2048
"""Kept, the least recently used go first."""
MAX_KEPT_CHARACTERS = 2000
"""Verdicts that have a longer spec are not kept."""
SILENT_SECONDS = 5.0
"""How much longer than a trial may take its answer may be missing."""
LOAD_SECONDS = 120.0
"""How long the trial process may take to load."""

OnVerdict = Callable[[Verdict | None], None]

logger = logging.getLogger(__name__)


class TrialsBusyError(Exception):
    """Too many specs that are slow to compile are tried already; this one is slow, too."""


class TrialsEndedError(Exception):
    """The trial process ended. The next trial starts it again."""


class Admission(NamedTuple):
    """A spec that can become a constraint."""

    spec: ConstraintSpec
    """What to compile: the one that was tried, or the same in other words."""
    warnings: list[str]
    """What a lenient one leaves out, one line a keyword."""


class Trials:
    """Tries specs. Safe in any thread; one per model."""

    def __init__(self, tokenizer: TokenizerFacts, config: ConstraintConfig) -> None:
        """Start the trial process. It takes a second to be ready, and trials wait for it."""
        self._settings = frame(TrialSettings(tokenizer, config))
        self._silent_seconds = config.timeout_seconds + SILENT_SECONDS
        self._ids = count()
        self._lock = threading.Lock()
        self._verdicts: OrderedDict[bytes, Verdict] = OrderedDict()
        self._process = _Process(self._settings)

    @property
    def pid(self) -> int:
        """Process id of the trial process."""
        return self._process.pid

    def wait_until_ready(self) -> None:
        """Block until the trial process has loaded. Raises TrialsEndedError if it cannot."""
        self.start(ConstraintSpec("text")).result()

    def start(self, spec: ConstraintSpec) -> Future[Admission]:
        """Try a spec.

        The future raises InvalidConstraintError with the reason and its place if the spec cannot
        become a constraint, TrialsBusyError, or TrialsEndedError. Cancelling it ends the trial.
        """
        key = hashlib.blake2b(msgspec.msgpack.encode(spec)).digest()
        future: Future[Admission] = Future()
        with self._lock:
            known = self._verdicts.get(key)
            if known is not None:
                self._verdicts.move_to_end(key)
            else:
                self._revive()
            process = self._process
        if known is not None:
            _settle(future, spec, known)
            return future

        def on_verdict(verdict: Verdict | None) -> None:
            if verdict is not None and _is_lasting(verdict):
                self._keep(key, verdict)
            _settle(future, spec, verdict)

        trial = Trial(next(self._ids), spec)
        process.send(trial, on_verdict)
        future.add_done_callback(lambda _: process.withdraw(trial.id))
        return future

    def close(self) -> None:
        """End the trial process; futures that are not done raise TrialsEndedError."""
        self._process.close()

    def _revive(self) -> None:
        """Start another trial process where there is none that works."""
        if self._process.has_ended:
            logger.error("the trial process ended; starting it again")
        elif self._process.is_frozen(self._silent_seconds):
            logger.error("the trial process does not answer; starting another one")
            self._process.kill()
        else:
            return
        self._process = _Process(self._settings)

    def _keep(self, key: bytes, verdict: Verdict) -> None:
        with self._lock:
            self._verdicts[key] = verdict
            if len(self._verdicts) > MAX_VERDICTS:
                self._verdicts.popitem(last=False)


class _Process:
    """One run of the trial process."""

    def __init__(self, settings: bytes) -> None:
        # numpy's threads are of no use there, and forks want a process that has but one
        environment = {**child_environment(), "OPENBLAS_NUM_THREADS": "1"}
        self._process = subprocess.Popen(COMMAND, stdin=PIPE, stdout=PIPE, env=environment)
        self._sender = ThreadPoolExecutor(1, thread_name_prefix="trials-send")
        self._lock = threading.Lock()
        self._waiting: dict[int, OnVerdict] = {}
        self._unanswered: dict[int, float] = {}
        """When each trial was sent that it owes an answer, whether or not somebody waits for it."""
        self._started_at = time.monotonic()
        self._has_loaded = False
        self.has_ended = False
        self._write(settings)
        threading.Thread(target=self._receive, name="trials-receive", daemon=True).start()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def is_frozen(self, silent_seconds: float) -> bool:
        """Whether it has owed an answer for longer than that: it is stopped, starved or stuck."""
        now = time.monotonic()
        with self._lock:
            oldest = next(iter(self._unanswered.values()), now)  # they are in their order
            if not self._has_loaded:
                return now > self._started_at + LOAD_SECONDS
        return now > oldest + silent_seconds

    def kill(self) -> None:
        """End it at once; whoever waits for a verdict is told that it ended."""
        self._process.kill()

    def send(self, trial: Trial, on_verdict: OnVerdict) -> None:
        """Have a spec tried. `on_verdict` is called in another thread, with None if we end."""
        with self._lock:
            has_ended = self.has_ended
            if not has_ended:
                self._waiting[trial.id] = on_verdict
                self._unanswered[trial.id] = time.monotonic()
        if has_ended:
            on_verdict(None)
        else:
            self._write(frame(trial))

    def withdraw(self, id: int) -> None:
        """End a trial, if it has not ended."""
        with self._lock:
            was_waiting = self._waiting.pop(id, None) is not None
        if was_waiting:
            self._write(frame(Withdrawal(id)))

    def close(self) -> None:
        """Let it end."""
        self._later(self._pipe(self._process.stdin).close)

    def _write(self, data: bytes) -> None:
        def write() -> None:
            pipe = self._pipe(self._process.stdin)
            pipe.write(data)
            pipe.flush()

        self._later(write)

    def _later(self, action: Callable[[], None]) -> None:
        """In another thread: the pipe may be full."""

        def act() -> None:
            with suppress(OSError, ValueError):  # it has ended, or was closed
                action()

        with suppress(RuntimeError):  # it has ended
            self._sender.submit(act)

    def _receive(self) -> None:
        output = self._pipe(self._process.stdout)
        frames = FrameBuffer()
        while data := os.read(output.fileno(), 65536):
            for message in frames.feed(data):
                verdict = msgspec.msgpack.decode(message, type=Verdict)
                with self._lock:
                    self._has_loaded = True
                    self._unanswered.pop(verdict.id, None)
                    on_verdict = self._waiting.pop(verdict.id, None)
                if on_verdict is not None:
                    on_verdict(verdict)
        self._end()

    def _end(self) -> None:
        self._pipe(self._process.stdout).close()
        self.close()
        self._process.wait()
        with self._lock:
            self.has_ended = True
            waiting, self._waiting = self._waiting, {}
        self._sender.shutdown(wait=False)
        for on_verdict in waiting.values():
            on_verdict(None)

    @staticmethod
    def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
        assert pipe is not None
        return pipe


def _is_lasting(verdict: Verdict) -> bool:
    """Whether the next trial would come to the same, and the verdict is worth its memory."""
    is_chance = verdict.is_busy or verdict.refusal == TOO_SLOW
    return not is_chance and len(verdict.spec.value if verdict.spec else "") <= MAX_KEPT_CHARACTERS


def _settle(future: Future[Admission], spec: ConstraintSpec, verdict: Verdict | None) -> None:
    if not future.set_running_or_notify_cancel():
        return
    if verdict is None:
        future.set_exception(TrialsEndedError("the trial process ended"))
    elif verdict.is_busy:
        future.set_exception(TrialsBusyError())
    elif verdict.refusal is not None:
        future.set_exception(InvalidConstraintError(verdict.refusal))
    else:
        future.set_result(Admission(verdict.spec or spec, verdict.warnings))
