"""How long calls took a thread."""

from __future__ import annotations

import math
import threading
import time

BRIEF_SECONDS = 0.00005
"""A reading of the CPU time that is no older is as good as a new one."""


class CallClock(threading.local):
    """Tells CPU time, mostly at the price of a look at the clock. In each thread it is another.

    Asking for the CPU time takes ten times as long. But what was brief by the clock was so by CPU
    time as well: only where it was not, others may have had the core meanwhile.
    """

    def __init__(self) -> None:
        """Nothing was read yet."""
        self._read_at = -math.inf
        self._cpu_seconds = 0.0

    def begin(self) -> float:
        """Call before what is timed; the result goes to `end`."""
        now = time.perf_counter()
        if now - self._read_at > BRIEF_SECONDS:
            self._read_at, self._cpu_seconds = now, time.thread_time()
        return now

    def end(self, begun: float) -> float:
        """The seconds since `begin`, of CPU time where they are many."""
        seconds = time.perf_counter() - begun
        if seconds <= BRIEF_SECONDS:
            return seconds
        return min(seconds, time.thread_time() - self._cpu_seconds)
