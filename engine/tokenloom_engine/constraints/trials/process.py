"""The trial process: loads the libraries, never compiles, and shares out trials among its forks.

Started by the front as `python -m tokenloom_engine.constraints.trials.process`; it reads messages
from its standard input and writes verdicts to its standard output. It ends when its input does.
"""

from __future__ import annotations

import gc
import os
import selectors
import signal
import sys
from collections import deque

import msgspec

from tokenloom_engine.constraints.factory import ConstraintFactory
from tokenloom_engine.constraints.trials.messages import (
    Trial,
    TrialSettings,
    Verdict,
    Withdrawal,
    frame,
)
from tokenloom_engine.constraints.trials.worker import Worker
from tokenloom_engine.frames import FrameBuffer

MAX_QUICK = max(2, os.cpu_count() or 1)
"""Trials at once that have not turned out slow."""
QUICK_SECONDS = 0.03
"""CPU time after which a trial counts as slow. Ordinary specs take one to ten milliseconds."""
MAX_SLOW = 2
"""Slow trials at once, in CPU time that hardly anybody else wants; any more are given up. So slow
ones cannot hold up quick ones, nor fill the memory, nor bring the engine more slow compilations
than it has threads to spare for."""
MAX_IDLE = 2
POLL_SECONDS = 0.02
"""How often trials that run are looked at."""


class TrialProcess:
    """Shares out trials."""

    def __init__(self, factory: ConstraintFactory, timeout_seconds: float, output: int) -> None:
        self._factory = factory
        self._timeout_seconds = timeout_seconds
        self._input = sys.stdin.fileno()
        self._output = output
        self._frames = FrameBuffer()
        self._decoder = msgspec.msgpack.Decoder(Trial | Withdrawal)
        self._selector = selectors.DefaultSelector()
        self._waiting: deque[Trial] = deque()
        self._busy: list[Worker] = []
        self._idle: list[Worker] = []
        self._is_open = True

    def run(self, begun: FrameBuffer) -> None:
        """Serve until the front has gone. `begun`: what was read of its messages already."""
        self._frames = begun
        self._selector.register(self._input, selectors.EVENT_READ)
        self._idle.append(self._fork())
        self._take(b"")
        while self._is_open:
            self._assign()
            for key, _ in self._selector.select(POLL_SECONDS if self._busy else None):
                if key.data is None:
                    self._read_front()
                elif key.data in self._busy:  # it may have been ended a moment ago
                    self._read_worker(key.data)
            self._curb()
        for worker in (*self._busy, *self._idle):
            worker.end()

    @property
    def _num_slow(self) -> int:
        return sum(worker.is_slow for worker in self._busy)

    def _read_front(self) -> None:
        data = os.read(self._input, 65536)
        self._is_open = bool(data)
        self._take(data)

    def _take(self, data: bytes) -> None:
        for message in self._frames.feed(data):
            match self._decoder.decode(message):
                case Trial() as trial:
                    self._waiting.append(trial)
                case Withdrawal(id):
                    self._withdraw(id)

    def _withdraw(self, id: int) -> None:
        """Nobody reads the answer, but that there is one tells the front that we are alive."""
        for trial in self._waiting:
            if trial.id == id:
                self._waiting.remove(trial)
                self._send(Verdict(id, is_busy=True))
                return
        for worker in self._busy:
            if worker.trial_id == id:
                self._give_up(worker)
                self._send(Verdict(id, is_busy=True))
                return

    def _assign(self) -> None:
        while self._waiting and len(self._busy) - self._num_slow < MAX_QUICK:
            trial = self._waiting.popleft()
            worker = self._idle.pop() if self._idle else self._fork()
            try:
                worker.begin(trial)
            except OSError:  # something has ended it
                worker.end()
                worker = self._fork()
                worker.begin(trial)
            self._busy.append(worker)
            self._selector.register(worker.channel, selectors.EVENT_READ, worker)

    def _read_worker(self, worker: Worker) -> None:
        channel = worker.channel.fileno()
        verdict = worker.read()
        if verdict is None:
            return
        self._send(verdict)
        self._busy.remove(worker)
        self._selector.unregister(channel)
        if worker.is_reusable and len(self._idle) < MAX_IDLE:
            self._idle.append(worker)
        else:
            worker.end()

    def _curb(self) -> None:
        """Put those that turn out slow behind the others, or give them up if they are too many."""
        for worker in list(self._busy):
            if worker.is_slow or worker.seconds < QUICK_SECONDS:
                continue
            if self._num_slow < MAX_SLOW:
                worker.slow_down()
            else:
                self._give_up(worker)
                self._send(Verdict(worker.trial_id, is_busy=True))

    def _give_up(self, worker: Worker) -> None:
        self._selector.unregister(worker.channel)
        self._busy.remove(worker)
        worker.end()

    def _send(self, verdict: Verdict) -> None:
        data = memoryview(frame(verdict))
        while data:
            data = data[os.write(self._output, data) :]

    def _fork(self) -> Worker:
        return Worker(self._factory, self._timeout_seconds)


def main() -> int:
    """Entry point."""
    # Ctrl-C reaches the whole group; the front decides when the process ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    output = os.dup(1)
    os.dup2(2, 1)  # whatever prints, prints to the log
    frames = FrameBuffer()
    settings = _settings(frames)
    if settings is None:
        return 0
    factory = ConstraintFactory(settings.tokenizer, settings.config)
    gc.freeze()  # or collections would copy the pages that forks share
    try:
        TrialProcess(factory, settings.config.timeout_seconds, output).run(frames)
    except BrokenPipeError:
        return 0  # the front has gone
    return 0


def _settings(frames: FrameBuffer) -> TrialSettings | None:
    """The first message; None if the front has gone before."""
    while data := os.read(0, 65536):
        for message in frames.feed(data):
            return msgspec.msgpack.decode(message, type=TrialSettings)
    return None


if __name__ == "__main__":
    sys.exit(main())
