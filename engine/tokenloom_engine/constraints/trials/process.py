"""The trial process: loads the libraries, never compiles, and schedules trials in its forks.

Started by the front as `python -m tokenloom_engine.constraints.trials.process`; it reads messages
from its standard input and writes verdicts to its standard output. It ends when its input does.
"""

from __future__ import annotations

import gc
import os
import selectors
import signal
import sys
import time

import msgspec

from tokenloom_engine.constraints.factory import ConstraintFactory
from tokenloom_engine.constraints.spec import ConstraintSpec
from tokenloom_engine.constraints.trials.levels import Job, Level, trial_levels
from tokenloom_engine.constraints.trials.messages import (
    TOO_LARGE,
    Heartbeat,
    Trial,
    TrialSettings,
    Verdict,
    Withdrawal,
    frame,
)
from tokenloom_engine.constraints.trials.worker import Worker, WorkerLostError
from tokenloom_engine.frames import FrameBuffer

MAX_WALL_SECONDS = 120.0
"""A trial that does not get its CPU time in so long is given up."""
MAX_IDLE = 2
POLL_SECONDS = 0.02
"""How often trials that run are looked at."""
HEARTBEAT_SECONDS = 1.0


class TrialProcess:
    """Schedules trials: a queue for each level, and a worker for each trial that runs.

    Trials of equal specs share one worker and its verdict.
    """

    def __init__(self, factory: ConstraintFactory, timeout_seconds: float, output: int) -> None:
        self._factory = factory
        self._timeout_seconds = timeout_seconds
        self._input = sys.stdin.fileno()
        self._output = output
        self._frames = FrameBuffer()
        self._decoder = msgspec.msgpack.Decoder(Trial | Withdrawal)
        self._selector = selectors.DefaultSelector()
        self._levels = trial_levels()
        self._jobs: dict[int, Job] = {}
        self._busy: list[Worker] = []
        self._idle: list[Worker] = []
        self._is_open = True
        self._next_heartbeat = 0.0

    def run(self, begun: FrameBuffer) -> None:
        """Serve until the front has gone. `begun`: what was read of its messages already."""
        self._frames = begun
        self._selector.register(self._input, selectors.EVENT_READ)
        self._idle.append(self._fork())
        self._take(b"")
        while self._is_open:
            for index, level in enumerate(self._levels):
                self._assign(index, level)
            for key, events in self._selector.select(POLL_SECONDS if self._busy else None):
                if key.data is None:
                    self._read_front()
                elif key.data in self._busy:  # it may have been ended a moment ago
                    self._serve(key.data, events)
            for worker in list(self._busy):
                self._check(worker)
            self._beat()
        for worker in (*self._busy, *self._idle):
            worker.end()

    def _read_front(self) -> None:
        data = os.read(self._input, 65536)
        self._is_open = bool(data)
        self._take(data)

    def _take(self, data: bytes) -> None:
        for message in self._frames.feed(data):
            match self._decoder.decode(message):
                case Trial() as trial:
                    self._add(trial)
                case Withdrawal(id):
                    self._withdraw(id)

    def _add(self, trial: Trial) -> None:
        level = max((job.level for job in self._jobs_of(trial.spec)), default=0)
        self._jobs[trial.id] = Job(trial, level)
        self._enqueue(self._jobs[trial.id])

    def _enqueue(self, job: Job) -> None:
        job.is_waiting = True
        dropped = self._levels[job.level].waiting.add(job.trial.client, job)
        if dropped is not None:  # no room
            self._answer(dropped, Verdict(0, is_busy=True))

    def _dequeue(self, job: Job) -> None:
        job.is_waiting = False
        self._levels[job.level].waiting.remove(job.trial.client, job)

    def _withdraw(self, id: int) -> None:
        """Nobody reads the answer, but that there is one tells the front that we are alive."""
        job = self._jobs.get(id)
        if job is None:
            return
        if job.is_waiting:
            self._dequeue(job)
        self._answer(job, Verdict(0, is_busy=True))
        worker = self._worker_of(job.trial.spec)
        if worker is not None and not self._jobs_of(job.trial.spec):
            self._end(worker)

    def _assign(self, index: int, level: Level) -> None:
        while level.waiting and self._num_running(index) < level.max_running:
            job = level.waiting.pop()
            job.is_waiting = False
            if self._worker_of(job.trial.spec) is None:
                self._begin(job.trial.spec, index)

    def _begin(self, spec: ConstraintSpec, level: int) -> None:
        worker = self._idle.pop() if self._idle else self._fork()
        if not worker.is_running:
            worker.end()
            worker = self._fork()
        if self._levels[level].is_low_priority:
            worker.lower_priority()
        worker.begin(spec, level)
        self._busy.append(worker)
        self._selector.register(worker.channel, worker.events, worker)

    def _serve(self, worker: Worker, events: int) -> None:
        """Send and read what can be sent to and read from a worker."""
        if events & selectors.EVENT_WRITE:
            worker.send()
            self._selector.modify(worker.channel, worker.events, worker)
        if events & selectors.EVENT_READ:
            channel = worker.channel.fileno()
            try:
                verdict = worker.read()
            except WorkerLostError:
                self._retry(worker, channel)
            else:
                if verdict is not None:
                    self._finish(worker, channel, verdict)

    def _finish(self, worker: Worker, channel: int, verdict: Verdict) -> None:
        self._selector.unregister(channel)
        self._busy.remove(worker)
        if worker.is_reusable and len(self._idle) < MAX_IDLE:
            self._idle.append(worker)
        else:
            worker.end()
        for job in self._jobs_of(worker.spec):
            if job.is_waiting:
                self._dequeue(job)
            self._answer(job, verdict)

    def _retry(self, worker: Worker, channel: int) -> None:
        """Try the spec of a worker that was lost again, but not for ever: it may be at fault."""
        self._selector.unregister(channel)
        self._busy.remove(worker)
        worker.end()
        for job in self._jobs_of(worker.spec):
            if job.is_waiting:
                continue
            if job.retries:
                job.retries -= 1
                self._enqueue(job)
            else:
                self._answer(job, Verdict(0, refusal=TOO_LARGE))

    def _check(self, worker: Worker) -> None:
        """Look whether a worker is stopped, starved, or too slow for its level."""
        channel = worker.channel.fileno()
        if not worker.is_running:
            if worker.is_stopped:
                self._retry(worker, channel)
        elif worker.wall_seconds > MAX_WALL_SECONDS:
            self._end(worker)
            for job in self._jobs_of(worker.spec):
                if not job.is_waiting:
                    self._answer(job, Verdict(0, is_busy=True))
        elif worker.cpu_seconds >= self._levels[worker.level].cpu_seconds:
            self._move_up(worker)

    def _move_up(self, worker: Worker) -> None:
        """To the next level: at once where there is room, or else anew when it is its turn."""
        index = worker.level + 1
        has_room = self._num_running(index) < self._levels[index].max_running
        if has_room:
            worker.level = index
            worker.lower_priority()
        else:
            self._end(worker)
        for job in self._jobs_of(worker.spec):
            if job.is_waiting:
                self._dequeue(job)
            job.level = index
            if not has_room:
                self._enqueue(job)

    def _end(self, worker: Worker) -> None:
        self._selector.unregister(worker.channel)
        self._busy.remove(worker)
        worker.end()

    def _num_running(self, level: int) -> int:
        return sum(worker.level == level for worker in self._busy)

    def _worker_of(self, spec: ConstraintSpec) -> Worker | None:
        return next((worker for worker in self._busy if worker.spec == spec), None)

    def _jobs_of(self, spec: ConstraintSpec) -> list[Job]:
        return [job for job in self._jobs.values() if job.trial.spec == spec]

    def _answer(self, job: Job, verdict: Verdict) -> None:
        del self._jobs[job.trial.id]
        self._send(msgspec.structs.replace(verdict, id=job.trial.id))

    def _beat(self) -> None:
        now = time.monotonic()
        if self._jobs and now >= self._next_heartbeat:
            self._next_heartbeat = now + HEARTBEAT_SECONDS
            self._send(Heartbeat())

    def _send(self, message: Verdict | Heartbeat) -> None:
        data = memoryview(frame(message))
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
