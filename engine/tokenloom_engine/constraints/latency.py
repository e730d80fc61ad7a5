"""Latency of constraints: how long a step waits for one, and which ones count as slow.

All limits stand in one table. They hold for a machine whose decoding forward takes `STEP_SECONDS`
or less; on a slower one they grow with the forward, for there a call takes longer, too, and holds
up its neighbours by no larger a share of a step. No single observation makes a constraint slow, and
none makes it slow for good.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace

from tokenloom_engine.constraints.call_clock import CallClock

STEP_SECONDS = 0.01
"""A decoding forward that takes no longer leaves the limits as they are."""
MOST_SCALE = 10.0
"""So many times as long at most may the limits become."""
LEARNING_RATE = 0.1
WINDOW = 4
"""Two late calls among so many make a constraint slow."""
FAR = 10.0
"""A mask that takes so many times its limit needs no second one beside it: what was measured is its
CPU time, which others on the machine cannot stretch so far."""
MOST_WINDOW = 256
"""After so many calls at most, a slow constraint is tried again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyLimits:
    """Seconds: of CPU time where a call is timed, of the clock where a step waits.

    | caller | waits for | at most |
    | --- | --- | --- |
    | a step, before and after its forward | quick masks | `patience` |
    | a step whose sequences all lack masks | any mask | `lonely_patience` |
    | a sequence that stopped | the mask under its captures | `captures_patience` |
    | a step | masks that it fills itself | `own_masks` |
    | a step | a call that accepts or tells forced tokens | `call`, else a thread makes it |
    | a step | the same, of a library that no thread can call | `allowed_call`, `allowed_excess` |
    | a step | a call that looks at drafts | `look` |
    | a sequence that ends | an earlier state, for captures | `recollection` |
    """

    patience: float = 0.001
    lonely_patience: float = 0.05
    captures_patience: float = 0.002
    own_masks: float = 0.004
    slow_mask: float = 0.005
    """Masks that take longer are filled by threads of low priority, and drafts are not made where a
    look-ahead takes as long for each draft."""
    brief_mask: float = 0.0005
    """Masks that take less are filled by the step itself."""
    call: float = 0.0005
    """Ordinary grammars take 0.3 ms at most, however many tokens a call accepts."""
    look: float = 0.0002
    """Drafts are looked at where calls take no longer..."""
    near_look: float = 0.00003
    """...or no longer than this where going back means to come again from some tokens before."""
    heavy_mask: float = 0.001
    """Where masks take longer, calls may as well."""
    forced_mask: float = 0.002
    """The same of a mask of one token, the first of a run that is forced."""
    long_text_mask: float = 0.004
    """The same where the run is long, which is no fault."""
    allowed_call: float = 0.005
    """Ordinary grammars take a tenth of a millisecond; the large ones of a collection of 325
    schemas 0.3 at most."""
    allowed_excess: float = 0.02
    """So much more, all in all, may the calls of one constraint take."""
    rehearsal: float = 0.005
    """Of a rehearsal's masks, all together."""
    recollection: float = 0.001
    temperature_grammar: float = 0.005
    """A grammar that sets temperatures compiles with the GIL held, in no more than this."""

    def scaled(self, factor: float) -> LatencyLimits:
        """The same, `factor` times as long, but for what holds nobody up."""
        names = [field.name for field in fields(self) if field.name != "lonely_patience"]
        return replace(self, **{name: getattr(self, name) * factor for name in names})


class Latency:
    """The limits as they hold on this machine now, and the clock that calls are timed by."""

    def __init__(self, limits: LatencyLimits | None = None, clock: CallClock | None = None) -> None:
        self._base = limits or LatencyLimits()
        self._scale = 1.0
        self._step_seconds: float | None = None
        self.limits = self._base
        self.clock = clock or CallClock()

    def observe_step(self, seconds: float) -> None:
        """Learn what a decoding forward takes."""
        known = self._step_seconds
        self._step_seconds = seconds if known is None else known + LEARNING_RATE * (seconds - known)
        scale = min(MOST_SCALE, max(1.0, self._step_seconds / STEP_SECONDS))
        if abs(scale - self._scale) > 0.1 * self._scale or scale == 1.0 != self._scale:
            self._scale = scale
            self.limits = self._base.scaled(scale)


class LatencyTracker:
    """Judges one kind of call by what was seen of it: slow is whoever was late twice in `WINDOW`.

    A slow one counts as quick again after as many calls that were not late, or that nobody timed.
    Each time that it turns out slow once more, these are twice as many.
    """

    __slots__ = ("_count", "_last_late", "_slow_until", "_window")

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Nothing was seen yet."""
        self._count = 0
        self._last_late = -WINDOW
        self._slow_until = 0
        self._window = WINDOW // 2

    @property
    def is_slow(self) -> bool:
        """Whether the next call may be late."""
        return self._count < self._slow_until

    def observe(self, seconds: float, limit: float, *, far: float = math.inf) -> None:
        """Count a call. A single late one is forgiven, unless it took `far` times the limit."""
        self._count += 1
        if seconds > limit:
            is_second = self._count - self._last_late < WINDOW
            if is_second or self.is_slow or seconds > far * limit:
                self.mark_slow()
            self._last_late = self._count

    def skip(self) -> None:
        """Count a call that was not timed, or could not be."""
        self._count += 1

    def mark_slow(self) -> None:
        """It is slow, whatever was seen of it."""
        if not self.is_slow:
            self._window = min(2 * self._window, MOST_WINDOW)
        self._slow_until = self._count + self._window
