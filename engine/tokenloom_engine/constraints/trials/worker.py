"""A worker as the trial process sees it: a fork of itself that tries one spec after another."""

from __future__ import annotations

import os
import signal
import socket

import msgspec
import psutil

from tokenloom_engine.constraints.factory import ConstraintFactory
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
SLOW_PRIORITY = 15
"""Niceness. A core that the engine computes on gives such a worker a thirtieth of its time. With
less, a good schema that is slow to compile would be refused wherever all cores are busy."""


class Worker:
    """Tries one spec at a time."""

    def __init__(self, factory: ConstraintFactory, timeout_seconds: float) -> None:
        """Fork. After `timeout_seconds` in a trial, the fork ends itself."""
        self.channel, theirs = socket.socketpair()
        self._pid = os.fork()
        if self._pid == 0:
            serve_trials(factory, theirs, timeout_seconds)
        theirs.close()
        self._process = psutil.Process(self._pid)
        self._frames = FrameBuffer()
        self._trials_left = MAX_TRIALS
        self._seconds_before = 0.0
        self._preliminary: Verdict | None = None
        self._has_ended = False
        self.trial_id = -1
        """Of the present or last trial."""
        self.is_slow = False

    @property
    def is_reusable(self) -> bool:
        """Whether it may try another."""
        return self._trials_left > 0 and not self.is_slow and not self._has_ended

    @property
    def seconds(self) -> float:
        """CPU time of the present trial."""
        return self._cpu_seconds() - self._seconds_before

    def begin(self, trial: Trial) -> None:
        """Let it try a spec. Raises OSError if it has ended meanwhile."""
        self.trial_id = trial.id
        self._preliminary = None
        self._trials_left -= 1
        self._seconds_before = self._cpu_seconds()
        self.channel.sendall(frame(trial))

    def read(self) -> Verdict | None:
        """The verdict, if it stands now. Call when there is something to read."""
        try:
            data = self.channel.recv(65536)
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

    def slow_down(self) -> None:
        """Let everybody else go first, from now on."""
        self.is_slow = True
        # Whose server was started with less may not take more.
        niceness = max(SLOW_PRIORITY, os.getpriority(os.PRIO_PROCESS, self._pid))
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
        ended_by = self.end()
        if self._preliminary is not None:
            return self._preliminary
        reason = TOO_SLOW if ended_by == signal.SIGALRM else TOO_LARGE
        return Verdict(self.trial_id, refusal=reason)

    def _cpu_seconds(self) -> float:
        times = self._process.cpu_times()
        return times.user + times.system
