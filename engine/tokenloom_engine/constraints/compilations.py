"""Specs that are compiled once, by threads of low priority, and kept."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from tokenloom_engine.constraints.low_priority import lower_priority
from tokenloom_engine.constraints.masks import CompiledConstraint
from tokenloom_engine.constraints.spec import ConstraintSpec

MAX_CACHED_SPECS = 512
MAX_CACHED_CHARACTERS = 16_000_000
"""Text of all specs that are kept; compiled, a character takes twenty bytes or so."""
MIN_THREADS = 5
"""Of which slow specs can take all but two at most: see `trials.levels`."""

T = TypeVar("T")


class Compilations:
    """Those that run, and the results of those that ran, failures too. Safe in any thread."""

    def __init__(
        self, compile: Callable[[ConstraintSpec], CompiledConstraint], num_threads: int
    ) -> None:
        self._compile = compile
        self._threads = ThreadPoolExecutor(
            max(MIN_THREADS, num_threads), thread_name_prefix="compile", initializer=lower_priority
        )
        self._futures: OrderedDict[ConstraintSpec, Future[CompiledConstraint]] = OrderedDict()
        self._characters = 0
        self._seconds: list[float] = []
        self._running: dict[ConstraintSpec, tuple[int, float]] = {}
        """The CPU clock of each one's thread, and what it showed at the beginning."""
        self._lock = threading.Lock()

    def start(self, spec: ConstraintSpec) -> Future[CompiledConstraint]:
        """Compile, or find it compiled."""
        with self._lock:
            future = self._futures.get(spec)
            if future is None:
                future = self._threads.submit(self._timed, spec)
                self._futures[spec] = future
                self._characters += len(spec.value)
            self._futures.move_to_end(spec)
            self._forget_oldest()
        return future

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Have something done by the same threads, behind what was started before.

        So it may wait for that: it cannot take the thread for which that would wait.
        """
        return self._threads.submit(work)

    def cpu_seconds(self, spec: ConstraintSpec) -> float:
        """CPU time that a compilation has taken so far; 0 if it does not run."""
        with self._lock:  # the thread is there as long as the spec is
            running = self._running.get(spec)
            if running is None:
                return 0.0
            clock, start = running
            return time.clock_gettime(clock) - start

    def take_seconds(self) -> list[float]:
        """How long each since the last call took that went well."""
        with self._lock:
            seconds, self._seconds = self._seconds, []
        return seconds

    def close(self) -> None:
        """Let the threads end."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _timed(self, spec: ConstraintSpec) -> CompiledConstraint:
        start = time.perf_counter()
        clock = time.pthread_getcpuclockid(threading.get_ident())
        with self._lock:
            self._running[spec] = clock, time.clock_gettime(clock)
        try:
            compiled = self._compile(spec)
        finally:
            with self._lock:
                del self._running[spec]
        with self._lock:
            self._seconds.append(time.perf_counter() - start)
        return compiled

    def _forget_oldest(self) -> None:
        while len(self._futures) > 1 and (
            len(self._futures) > MAX_CACHED_SPECS or self._characters > MAX_CACHED_CHARACTERS
        ):
            spec, _ = self._futures.popitem(last=False)
            self._characters -= len(spec.value)
