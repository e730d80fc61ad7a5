"""A worker as the trial process sees it: a fork of itself that tries one spec after another."""

from __future__ import annotations

import os
import selectors
import signal
import socket
import time

import msgspec
import psutil

from tokenloom_engine.constraints.factory import ConstraintFactory
from tokenloom_engine.constraints.spec import ConstraintSpec
from tokenloom_engine.constraints.trials.child import serve_trials
from tokenloom_engine.constraints.trials.messages import (
    TOO_LARGE,
    TOO_SLOW,
    Trial,
    Verdict,
    frame,
)
from tokenloom_engine.frames import FrameBuffer

MAX_TRIALS = 100
"""After so many a worker is replaced by a fresh one, in case memory leaks."""
LOW_PRIORITY = 15
"""Niceness. A core that the engine computes on gives such a worker a thirtieth of its time, and an
idle one all of it."""
NOT_RUNNING = (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)


class WorkerLostError(Exception):
    """Somebody else ended or stopped the worker: nothing is known of the spec."""


class Worker:
    """Tries one spec at a time."""

    def __init__(self, factory: ConstraintFactory, timeout_seconds: float) -> None:
        """Fork. After `timeout_seconds` of CPU time in a trial, the fork ends itself."""
        self.channel, theirs = socket.socketpair()
        self._pid = os.fork()
        if self._pid == 0:
            serve_trials(factory, theirs, timeout_seconds)
        theirs.close()
        self.channel.setblocking(False)
        self._process = psutil.Process(self._pid)
        self._frames = FrameBuffer()
        self._unsent = memoryview(b"")
        self._trials_left = MAX_TRIALS
        self._seconds_before = 0.0
        self._begun_at = 0.0
        self._preliminary: Verdict | None = None
        self._is_low_priority = False
        self._has_ended = False
        self.spec = ConstraintSpec("text")
        """Of the present or last trial."""
        self.level = 0
        """Of the present or last trial."""

    @property
    def is_reusable(self) -> bool:
        """Whether it may try another."""
        return self._trials_left > 0 and not self._is_low_priority and not self._has_ended

    @property
    def is_running(self) -> bool:
        """Whether it has neither ended nor been stopped."""
        return not self._has_ended and self._process.status() not in NOT_RUNNING

    @property
    def is_stopped(self) -> bool:
        """Whether somebody has stopped it, as SIGSTOP does."""
        return not self._has_ended and self._process.status() == psutil.STATUS_STOPPED

    @property
    def cpu_seconds(self) -> float:
        """CPU time of the present trial."""
        return self._total_cpu_seconds() - self._seconds_before

    @property
    def wall_seconds(self) -> float:
        """Time since the present trial began."""
        return time.monotonic() - self._begun_at

    @property
    def events(self) -> int:
        """The selector's events that it waits for."""
        return selectors.EVENT_READ | (selectors.EVENT_WRITE if self._unsent else 0)

    def begin(self, spec: ConstraintSpec, level: int) -> None:
        """Let it try a spec. What does not fit into its socket is for `send` to send."""
        self.spec, self.level = spec, level
        self._preliminary = None
        self._trials_left -= 1
        self._seconds_before = self._total_cpu_seconds()
        self._begun_at = time.monotonic()
        self._unsent = memoryview(frame(Trial(0, spec)))
        self.send()

    def send(self) -> None:
        """Send more of the spec, without waiting: a worker that is stopped reads nothing."""
        try:
            self._unsent = self._unsent[self.channel.send(self._unsent) :]
        except BlockingIOError:
            pass
        except OSError:  # it has ended, as `read` finds out
            self._unsent = memoryview(b"")

    def read(self) -> Verdict | None:
        """The verdict, if it stands now. Call when there is something to read.

        Raises WorkerLostError.
        """
        try:
            data = self.channel.recv(65536)
        except BlockingIOError:
            return None
        except ConnectionResetError:
            data = b""
        if not data:
            return self._last_words()
        for message in self._frames.feed(data):
            verdict = msgspec.msgpack.decode(message, type=Verdict)
            if verdict.is_final:
                return verdict
            self._preliminary = verdict
        return None

    def lower_priority(self) -> None:
        """Let everybody else go first, from now on."""
        self._is_low_priority = True
        # Whose server was started with less may not take more.
        niceness = max(LOW_PRIORITY, os.getpriority(os.PRIO_PROCESS, self._pid))
        os.setpriority(os.PRIO_PROCESS, self._pid, niceness)

    def end(self) -> int:
        """End it, if it has not ended. Returns the signal that did it, 0 if none."""
        if self._has_ended:
            return 0
        self._has_ended = True
        self.channel.close()
        os.kill(self._pid, signal.SIGKILL)
        return os.WTERMSIG(os.waitpid(self._pid, 0)[1])

    def _last_words(self) -> Verdict:
        """What a trial comes to whose worker died of it."""
        os.waitid(os.P_PID, self._pid, os.WEXITED | os.WNOWAIT)  # before `end` kills it
        ended_by = self.end()
        if self._preliminary is not None:
            return self._preliminary
        if ended_by == signal.SIGKILL:
            raise WorkerLostError
        return Verdict(0, refusal=TOO_SLOW if ended_by == signal.SIGPROF else TOO_LARGE)

    def _total_cpu_seconds(self) -> float:
        times = self._process.cpu_times()
        return times.user + times.system
