"""The front's connection to one run of the trial process."""

from __future__ import annotations

import logging
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from subprocess import PIPE

import msgspec

from tokenloom_engine.child_environment import child_environment
from tokenloom_engine.constraints.trials.messages import (
    Heartbeat,
    Trial,
    Verdict,
    Withdrawal,
    frame,
)
from tokenloom_engine.frames import FrameBuffer

COMMAND = (sys.executable, "-m", "tokenloom_engine.constraints.trials.process")
LOAD_SECONDS = 120.0
"""How long the trial process may take to load."""
SILENT_SECONDS = 10.0
"""How long it may be silent while it owes an answer. It sends a heartbeat each second."""
POLL_SECONDS = 0.2

OnVerdict = Callable[[Verdict | None], None]

logger = logging.getLogger(__name__)


class TrialConnection:
    """Starts a trial process, sends it trials, and ends it when it stops answering.

    No write outlasts that: whoever is silent for too long is ended, and with it the pipe.
    """

    def __init__(self, settings: bytes) -> None:
        """Start the process. `settings`: its first message."""
        # numpy's threads are of no use there, and forks want a process that has but one
        environment = {**child_environment(), "OPENBLAS_NUM_THREADS": "1"}
        self._process = subprocess.Popen(COMMAND, stdin=PIPE, stdout=PIPE, env=environment)
        self._sender = ThreadPoolExecutor(1, thread_name_prefix="trials-send")
        self._lock = threading.Lock()
        self._waiting: dict[int, OnVerdict] = {}
        self._unanswered: set[int] = set()
        """Trials that it owes an answer, whether or not somebody waits for it."""
        self._heard_at = time.monotonic()
        """When it last said something, or began to owe an answer."""
        self._has_loaded = False
        self.has_ended = False
        self._write(settings)
        threading.Thread(target=self._receive, name="trials-receive", daemon=True).start()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def send(self, trial: Trial, on_verdict: OnVerdict) -> None:
        """Have a spec tried. `on_verdict` is called in another thread, with None if it ends."""
        with self._lock:
            has_ended = self.has_ended
            if not has_ended:
                if not self._unanswered:
                    self._heard_at = time.monotonic()
                self._waiting[trial.id] = on_verdict
                self._unanswered.add(trial.id)
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
        """End the process, whatever it does."""
        self._process.kill()

    def _write(self, data: bytes) -> None:
        """In another thread: the pipe may be full."""
        stdin = self._process.stdin
        assert stdin is not None

        def write() -> None:
            with suppress(OSError, ValueError):  # it has ended, or was closed
                stdin.write(data)
                stdin.flush()

        with suppress(RuntimeError):  # it has ended
            self._sender.submit(write)

    def _receive(self) -> None:
        stdout = self._process.stdout
        assert stdout is not None
        frames = FrameBuffer()
        decoder = msgspec.msgpack.Decoder(Verdict | Heartbeat)
        while True:
            if not select.select([stdout], [], [], POLL_SECONDS)[0]:
                self._end_if_silent()
                continue
            data = os.read(stdout.fileno(), 65536)
            if not data:
                break
            for message in frames.feed(data):
                self._take(decoder.decode(message))
        self._end()

    def _take(self, message: Verdict | Heartbeat) -> None:
        on_verdict = None
        with self._lock:
            self._has_loaded = True
            self._heard_at = time.monotonic()
            if isinstance(message, Verdict):
                self._unanswered.discard(message.id)
                on_verdict = self._waiting.pop(message.id, None)
        if on_verdict is not None and isinstance(message, Verdict):
            on_verdict(message)

    def _end_if_silent(self) -> None:
        with self._lock:
            limit = SILENT_SECONDS if self._has_loaded else LOAD_SECONDS
            is_silent = bool(self._unanswered) and time.monotonic() > self._heard_at + limit
        if is_silent:
            logger.error("the trial process has not answered for %g seconds; ending it", limit)
            self._process.kill()

    def _end(self) -> None:
        for pipe in (self._process.stdout, self._process.stdin):
            assert pipe is not None
            with suppress(OSError):  # what was not sent
                pipe.close()
        self._process.wait()
        with self._lock:
            self.has_ended = True
            waiting, self._waiting = self._waiting, {}
        self._sender.shutdown(wait=False)
        for on_verdict in waiting.values():
            on_verdict(None)
