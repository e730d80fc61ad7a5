"""What a worker does after the fork: trial after trial, within limits, while somebody asks."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import socket
import sys
from collections.abc import Iterator
from typing import NoReturn

import msgspec
import psutil

from tokenloom_engine.constraints.base import InvalidConstraintError
from tokenloom_engine.constraints.factory import ConstraintFactory
from tokenloom_engine.constraints.trials.messages import Trial, Verdict, frame
from tokenloom_engine.frames import FrameBuffer

PR_SET_PDEATHSIG = 1
MAX_MEMORY = 512 * 2**20
"""Bytes that a worker may take besides what it has from the trial process."""
MAX_STACK = 4 * 2**20
"""Half of what the engine's threads have: what did not overflow here does not there."""
PRIORITY = 5
"""Niceness. A core that the engine computes on gives a worker a quarter of its time."""
FAULT_SECONDS = 1.0
"""CPU time that the search for the place of a fault may take."""
MAX_CHARACTERS = 1000
"""Of a reason or a warning."""
MAX_WARNINGS = 100


def serve_trials(
    factory: ConstraintFactory, channel: socket.socket, timeout_seconds: float
) -> NoReturn:
    """Never returns. A trial that takes more CPU time than `timeout_seconds` ends the process."""
    try:
        _end_with_parent()
        _let_go_of_all_but(channel)
        _limit()
        frames = FrameBuffer()
        while data := channel.recv(65536):
            for message in frames.feed(data):
                trial = msgspec.msgpack.decode(message, type=Trial)
                signal.setitimer(signal.ITIMER_PROF, timeout_seconds)
                for verdict in _verdicts(factory, trial):
                    channel.sendall(frame(verdict))
                signal.setitimer(signal.ITIMER_PROF, 0)
    finally:
        os._exit(0)


def _verdicts(factory: ConstraintFactory, trial: Trial) -> Iterator[Verdict]:
    """The last one is final."""
    try:
        spec = factory.translate(trial.spec)
        warnings = [warning[:MAX_CHARACTERS] for warning in factory.validate(spec)]
        easier = None if spec is trial.spec else spec
        yield Verdict(trial.id, easier, warnings[:MAX_WARNINGS])
    except InvalidConstraintError as error:
        reason = str(error)
        yield Verdict(trial.id, refusal=reason[:MAX_CHARACTERS], is_final=error.place is not None)
        if error.place is not None:
            return
        signal.setitimer(signal.ITIMER_PROF, FAULT_SECONDS)
        place = factory.find_fault(trial.spec, reason)
        at = f" (at {place[:MAX_CHARACTERS]})" if place else ""
        yield Verdict(trial.id, refusal=reason[:MAX_CHARACTERS] + at)
    except BaseException as error:  # also what Rust calls a panic
        yield Verdict(trial.id, refusal=f"it cannot be compiled: {type(error).__name__}")


def _end_with_parent() -> None:
    """Have the kernel end this process with the trial process, also while it compiles."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _let_go_of_all_but(channel: socket.socket) -> None:
    """The pipes to the front and the other workers' channels must close when their owners end."""
    devnull = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):  # a library that panics would print the client's grammar
        os.dup2(devnull, standard)
    os.closerange(3, channel.fileno())
    os.closerange(channel.fileno() + 1, os.sysconf("SC_OPEN_MAX"))


def _limit() -> None:
    os.nice(PRIORITY)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    memory = psutil.Process().memory_info().vms + MAX_MEMORY
    for limit, value in (
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_STACK, MAX_STACK),
        (resource.RLIMIT_CORE, 0),
    ):
        hard = resource.getrlimit(limit)[1]
        if hard == resource.RLIM_INFINITY or value < hard:
            resource.setrlimit(limit, (value, hard))
