"""A back end whose constraints are timed: what their calls take of the threads that make them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from tokenloom_engine.constraints.base import Bitmask, Captures, Constraint, ConstraintBackend
from tokenloom_engine.constraints.spec import ConstraintSpec

T = TypeVar("T")


@dataclass
class Watch:
    """CPU seconds of calls, since somebody last took them. CPU time does not count who waits."""

    inside: float = 0.0
    """In the thread that made the watch, added up: that of the engine's steps."""
    beside: float = 0.0
    """The longest call in another thread that keeps Python's lock."""
    longest: str = ""
    """The call that took longest in the thread of the steps."""
    _most: float = 0.0
    _thread: int = field(default_factory=threading.get_ident)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @contextmanager
    def call(self, name: str, *, keeps_lock: bool = True) -> Iterator[None]:
        """Count the time of what is done in it."""
        start = time.thread_time()
        yield
        seconds = time.thread_time() - start
        with self._lock:
            if threading.get_ident() == self._thread:
                self.inside += seconds
                if seconds > self._most:
                    self._most, self.longest = seconds, name
            elif keeps_lock:
                self.beside = max(self.beside, seconds)

    def take(self) -> tuple[float, float, str]:
        """Seconds inside and beside, the name of the longest call inside; then begin again."""
        with self._lock:
            taken = self.inside, self.beside, self.longest
            self.inside, self.beside, self.longest, self._most = 0.0, 0.0, "", 0.0
        return taken


class WatchedBackend:
    """Passes everything on to another back end."""

    def __init__(self, backend: ConstraintBackend, watch: Watch) -> None:
        self._backend = backend
        self._watch = watch
        self.kinds = backend.kinds

    def validate(self, spec: ConstraintSpec) -> list[str]:
        """See ConstraintBackend. Not timed: it happens in other processes."""
        return self._backend.validate(spec)

    def create(self, spec: ConstraintSpec) -> Constraint:
        """See ConstraintBackend. Not timed: most of it is done without Python's lock."""
        return WatchedConstraint(self._backend.create(spec), self._watch)

    def fill_bitmasks(self, rows: Seq[tuple[Constraint, int]], bitmask: Bitmask) -> None:
        """See ConstraintBackend."""
        own = []
        for constraint, row in rows:
            assert isinstance(constraint, WatchedConstraint)
            own.append((constraint.watched, row))
        with self._watch.call("fill_bitmasks", keeps_lock=False):
            self._backend.fill_bitmasks(own, bitmask)


class WatchedConstraint:
    """Passes everything on to another constraint."""

    def __init__(self, constraint: Constraint, watch: Watch) -> None:
        self.watched = constraint
        self._watch = watch

    @property
    def error(self) -> str | None:
        """See Constraint."""
        return self.watched.error

    @property
    def is_accepting(self) -> bool:
        """See Constraint."""
        return self._timed("is_accepting", lambda: self.watched.is_accepting)

    @property
    def is_terminated(self) -> bool:
        """See Constraint."""
        return self.watched.is_terminated

    @property
    def is_dear(self) -> bool:
        """See Constraint."""
        return self.watched.is_dear

    @property
    def temperature(self) -> float | None:
        """See Constraint."""
        return self.watched.temperature

    def accept_tokens(self, ids: Seq[int]) -> bool:
        """See Constraint."""
        return self._timed("accept_tokens", lambda: self.watched.accept_tokens(ids))

    def validate_tokens(self, ids: Seq[int], *, briefly: bool = False) -> int:
        """See Constraint."""
        return self._timed(
            "validate_tokens", lambda: self.watched.validate_tokens(ids, briefly=briefly)
        )

    def forced_tokens(self) -> list[int]:
        """See Constraint."""
        return self._timed("forced_tokens", self.watched.forced_tokens)

    def rollback(self, count: int) -> None:
        """See Constraint."""
        self._timed("rollback", lambda: self.watched.rollback(count))

    def reset(self) -> None:
        """See Constraint."""
        self._timed("reset", self.watched.reset)

    def fork(self) -> Constraint:
        """See Constraint."""
        return WatchedConstraint(self.watched.fork(), self._watch)

    def captures(self) -> Captures:
        """See Constraint."""
        return self._timed("captures", self.watched.captures)

    def _timed(self, name: str, work: Callable[[], T]) -> T:
        with self._watch.call(name):
            return work()
