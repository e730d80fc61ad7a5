"""What a matcher costs those who ask it, as far as it is known."""

from __future__ import annotations

from tokenloom_engine.constraints.call_clock import Begun
from tokenloom_engine.constraints.latency import FAR, Latency, LatencyTracker

WEIGHTY_SECONDS = 0.05
"""Who took longer in all has grown: to free it takes a hundredth of that, or less."""


class Cost:
    """Of one matcher: what its calls and its masks took lately. Of the next ones, nobody knows.

    A call is one that accepts tokens or tells forced ones, for which Python's lock is kept.
    """

    def __init__(self, latency: Latency, *, goes_back: bool) -> None:
        """`goes_back`: whether tokens can be taken back without coming again from before."""
        self._latency = latency
        self._goes_back = goes_back
        self.begin = latency.clock.begin
        """Call before what is to be timed."""
        self.seconds_since = latency.clock.end
        self.calls = LatencyTracker()
        self._looks = LatencyTracker()
        self._masks = LatencyTracker()
        self._all_seconds = 0.0

    @property
    def is_dear(self) -> bool:
        """Whether the next call is not for the thread of all sequences."""
        return self.calls.is_slow or self._masks.is_slow

    @property
    def is_weighty(self) -> bool:
        """Whether to free the matcher may take long, too."""
        return self._all_seconds > WEIGHTY_SECONDS

    def end(self, begun: Begun) -> None:
        """Count a call since `begin`."""
        seconds, limits = self.seconds_since(begun), self._latency.limits
        self.calls.observe(seconds, limits.call)
        self._looks.observe(seconds, limits.look if self._goes_back else limits.near_look)

    def count_compilation(self, seconds: float) -> None:
        """Count what it took to make the matcher."""
        self._all_seconds += seconds

    def count_aside(self, seconds: float) -> None:
        """Count a call that was made in another thread.

        How much of the time it was kept waiting for a core, nobody can tell.
        """
        self.calls.skip()
        self._looks.skip()
        self._all_seconds += seconds

    def count_mask(self, seconds: float) -> None:
        """Count a mask."""
        self._masks.observe(seconds, self._latency.limits.heavy_mask, far=FAR)
        self._all_seconds += seconds

    def may_be_long_text(self, mask_seconds: float) -> bool:
        """Whether a mask of one token may be dear for a long text alone that is forced."""
        return not self.calls.is_slow and mask_seconds <= self._latency.limits.long_text_mask

    def end_long_text(self, begun: Begun, mask_seconds: float) -> bool:
        """Count a call that told what is forced after that mask, and whether it was so."""
        # Where the text is long, and no more than that, most of the time makes tokens of it.
        is_long = self.seconds_since(begun) > mask_seconds / 4
        if mask_seconds < self._latency.limits.forced_mask or is_long:
            self._masks.forget()
        return not self.is_dear

    def seconds_to_look(self) -> float:
        """How long drafts may be looked at: not at all after calls that were not brief."""
        return 0.0 if self.is_dear or self._looks.is_slow else self._latency.limits.look

    def forget(self) -> None:
        """What was known was of another state."""
        for tracker in (self.calls, self._looks, self._masks):
            tracker.forget()
