"""Clocks that tests move, and an engine's patience with constraints where time is not the point."""

from __future__ import annotations

from tokenloom_engine.constraints.call_clock import CallClock
from tokenloom_engine.constraints.latency import Latency, LatencyLimits


class ManualTime:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        """Let time pass: that of the clock, and the thread's own."""
        self.now += seconds


def manual_latency(time: ManualTime | None = None) -> Latency:
    """By a clock that stands still unless moved: no constraint is slow, each mask is waited for."""
    time = time or ManualTime()
    limits = LatencyLimits(patience=60, lonely_patience=60, captures_patience=60)
    return Latency(limits, CallClock(time, time))
