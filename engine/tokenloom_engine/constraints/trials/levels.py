"""Levels of a multilevel feedback queue: the more CPU time a trial takes, the later its turn."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from tokenloom_engine.cgroup import usable_cores
from tokenloom_engine.constraints.trials.fair_queue import FairQueue
from tokenloom_engine.constraints.trials.messages import Trial

NUM_CORES = usable_cores()
MAX_QUICK = max(2, NUM_CORES)
QUICK_SECONDS = 0.03
"""Ordinary specs take one to ten milliseconds."""
MAX_SLOW = max(1, NUM_CORES // 2)
SLOW_SECONDS = 1.0
"""The longest that one slow spec holds up the next, in CPU time."""
MAX_LONG = 1
MAX_WAITING = 512
"""Trials that wait at a level. What is more is refused."""


@dataclass(eq=False)
class Job:
    """A trial that owes its answer."""

    trial: Trial
    level: int
    is_waiting: bool = False
    """Whether it is in the queue of its level."""
    retries: int = 1
    """How often it may be tried again after somebody else ended its worker."""


@dataclass
class Level:
    """Trials that have taken about the same CPU time."""

    max_running: int
    cpu_seconds: float
    """A trial that takes longer belongs to the next level."""
    is_low_priority: bool = True
    waiting: FairQueue[Job] = field(default_factory=lambda: FairQueue(MAX_WAITING))


def trial_levels() -> list[Level]:
    """Return the levels, the quickest first.

    Slow trials do not hold up quick ones, and of slow ones, long ones do not hold up the others.
    In all there are fewer slow ones at once than the engine has threads to compile them.
    """
    return [
        Level(MAX_QUICK, QUICK_SECONDS, is_low_priority=False),
        Level(MAX_SLOW, SLOW_SECONDS),
        Level(MAX_LONG, math.inf),
    ]
