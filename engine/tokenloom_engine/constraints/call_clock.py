"""How long calls took a thread."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable

BRIEF_SECONDS = 0.00005
"""A reading of the CPU time that is no older is as good as a new one."""

Begun = tuple[float, float]
"""When something began, by the clock and by the thread's CPU time."""


class CallClock(threading.local):
    """Tells CPU time, mostly at the price of a look at the clock. In each thread it is another.

    Asking for the CPU time takes ten times as long. But what was brief by the clock was so by CPU
    time as well: only where it was not, others may have had the core meanwhile.
    """

    def __init__(
        self,
        wall: Callable[[], float] = time.perf_counter,
        cpu: Callable[[], float] = time.thread_time,
    ) -> None:
        """`wall` and `cpu` tell the time and the calling thread's own, in seconds."""
        self.wall, self.cpu = wall, cpu
        self._read_at = -math.inf
        self._cpu_seconds = 0.0

    def begin(self) -> Begun:
        """Call before what is timed; the result goes to `end`. May be nested."""
        now = self.wall()
        if now - self._read_at > BRIEF_SECONDS:
            self._read_at, self._cpu_seconds = now, self.cpu()
        return now, self._cpu_seconds

    def end(self, begun: Begun) -> float:
        """The seconds since `begin`, of CPU time where they are many."""
        began_at, cpu_seconds = begun
        seconds = self.wall() - began_at
        if seconds <= BRIEF_SECONDS:
            return seconds
        return min(seconds, self.cpu() - cpu_seconds)
