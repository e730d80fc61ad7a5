"""When a forward runs: a GPU computes on after the call that launched it has returned."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch


class ForwardClock:
    """Times one forward after another."""

    def __init__(self, device: torch.device, wall: Callable[[], float] = time.perf_counter) -> None:
        """`wall`: the time in seconds, where the device has no clock of its own."""
        self._wall = wall
        self._marks: tuple[torch.Event, torch.Event] | None = None
        if device.type == "cuda":
            start, end = (torch.Event(device, enable_timing=True) for _ in range(2))
            self._marks = start, end
        self._started = 0.0
        self._ended = 0.0

    def start(self) -> None:
        """The forward is about to be called."""
        self._started = self._wall()
        if self._marks is not None:
            self._marks[0].record()

    def stop(self) -> None:
        """The call has returned."""
        self._ended = self._wall()
        if self._marks is not None:
            self._marks[1].record()

    @property
    def is_running(self) -> bool:
        """Whether it is being computed still."""
        return self._marks is not None and not self._marks[1].query()

    @property
    def seconds(self) -> float:
        """How long the last one took. Waits for its end."""
        if self._marks is None:
            return self._ended - self._started
        self._marks[1].synchronize()
        milliseconds: float = self._marks[0].elapsed_time(self._marks[1])
        return milliseconds / 1000
