"""What a constraint may take of the thread that all sequences wait for."""

from __future__ import annotations

from tokenloom_engine.constraints.call_clock import Begun
from tokenloom_engine.constraints.latency import Latency, LatencyLimits

TOO_DEAR = f"it takes more than {1000 * LatencyLimits().allowed_call:.0f} ms for a token"


class Allowance:
    """One constraint's, from its beginning. Masks are not its affair: no step waits for them long.

    The libraries keep Python's lock while they accept tokens and look for forced ones, so another
    thread would be no help. What cannot be done aside must be quick, or is given up.
    """

    def __init__(self, latency: Latency) -> None:
        self._latency = latency
        self.begin = latency.clock.begin
        """Call before the constraint is asked; the result goes to `end`."""
        self._num_late = 0
        self._excess = 0.0

    @property
    def is_overdrawn(self) -> bool:
        """Whether the constraint took too long, and more than once."""
        return self._num_late > 1 and self._excess > self._latency.limits.allowed_excess

    def end(self, begun: Begun) -> None:
        """Count the CPU time since `begin`."""
        seconds = self._latency.clock.end(begun)
        excess = seconds - self._latency.limits.allowed_call
        if excess > 0:
            self._num_late += 1
            self._excess += excess
