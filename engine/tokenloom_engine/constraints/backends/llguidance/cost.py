"""What a matcher costs those who ask it, as far as it is known."""

from __future__ import annotations

from tokenloom_engine.constraints.backends.llguidance.call_clock import CallClock

CALL_SECONDS = 0.0005
"""A call that took longer, the thread of all sequences makes no more: ordinary grammars take 0.3 ms
at most. What a call costs hardly depends on how many tokens it accepts."""
LOOK_SECONDS = 0.0002
"""After a call that took longer, nobody looks at tokens that may follow it."""
NEAR_SECONDS = 0.00003
"""The same where going back means to come again from some tokens before."""
MASK_SECONDS = 0.001
"""After a mask that took longer, accepting a token may, too."""
FORCED_SECONDS = 0.002
"""The same of a mask of one token, the first of a run that is forced."""
LONG_TEXT_SECONDS = 0.004
"""The same where the run is long, which is no fault."""
WEIGHTY_SECONDS = 0.05
"""Who took longer in all has grown: to free it takes a hundredth of that, or less."""


class Cost:
    """Of one matcher: what its last call and its last mask took. Of the next ones, nobody knows.

    A call is one that accepts tokens or tells forced ones, for which Python's lock is kept.
    """

    def __init__(self, clock: CallClock) -> None:
        """It cost nothing yet."""
        self.begin = clock.begin
        """Call before what is to be timed."""
        self.seconds_since = clock.end
        self.is_dear = False
        """Whether the next call is not for the thread of all sequences."""
        self._call_seconds = 0.0
        self._all_seconds = 0.0

    @property
    def is_weighty(self) -> bool:
        """Whether to free the matcher may take long, too."""
        return self._all_seconds > WEIGHTY_SECONDS

    def end(self, begun: float) -> None:
        """Count a call since `begin`."""
        self._call_seconds = seconds = self.seconds_since(begun)
        if seconds > CALL_SECONDS:
            self.is_dear = True

    def count_compilation(self, seconds: float) -> None:
        """Count what it took to make the matcher."""
        self._all_seconds += seconds

    def count_aside(self, seconds: float) -> None:
        """Count a call that was made in another thread."""
        self._call_seconds = seconds
        self._all_seconds += seconds

    def count_mask(self, seconds: float) -> None:
        """Count a mask. Only then is it known whether what was dear still is."""
        self.is_dear = seconds > MASK_SECONDS or self._call_seconds > CALL_SECONDS
        self._all_seconds += seconds

    def may_be_long_text(self, mask_seconds: float) -> bool:
        """Whether a mask of one token may be dear for a long text alone that is forced."""
        return self._call_seconds <= CALL_SECONDS and mask_seconds <= LONG_TEXT_SECONDS

    def end_long_text(self, begun: float, mask_seconds: float) -> bool:
        """Count a call that told what is forced after that mask, and whether it was so."""
        # Where the text is long, and no more than that, most of the time makes tokens of it.
        if mask_seconds < FORCED_SECONDS or self.seconds_since(begun) > mask_seconds / 4:
            self.is_dear = False
        return not self.is_dear

    def seconds_to_look(self, *, goes_back: bool) -> float:
        """How long drafts may be looked at: not at all after a call that was not brief."""
        most_seconds = LOOK_SECONDS if goes_back else NEAR_SECONDS
        return 0.0 if self.is_dear or self._call_seconds > most_seconds else LOOK_SECONDS

    def forget(self) -> None:
        """What was known was of another state."""
        self.is_dear, self._call_seconds = False, 0.0
