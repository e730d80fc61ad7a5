"""What a constraint may take of the thread that all sequences wait for."""

from __future__ import annotations

import time

STEP_SECONDS = 0.005
"""Of accepting a token, or finding what is forced. Ordinary grammars take a tenth of a millisecond;
the large ones of a collection of 325 schemas 0.3 at most."""
EXCESS_SECONDS = 0.02
"""More than that, all in all: a single slow one may be the machine's fault."""
TOO_DEAR = f"it takes more than {1000 * STEP_SECONDS:.0f} ms for a token"


class Allowance:
    """One constraint's, from its beginning. Masks are not its affair: no step waits for them long.

    The libraries keep Python's lock while they accept tokens and look for forced ones, so another
    thread would be no help. What cannot be done aside must be quick, or is given up.
    """

    def __init__(self, *, is_strict: bool = False) -> None:
        """`is_strict`: measure CPU time from the beginning, and not only once something was slow.

        A look at the CPU time costs ten times what one at the clock does, but does not count how
        long the thread itself was kept waiting.
        """
        self._clock = time.thread_time if is_strict else time.perf_counter
        self._excess = 0.0

    @property
    def is_overdrawn(self) -> bool:
        """Whether the constraint took too long too often."""
        return self._excess > EXCESS_SECONDS

    def begin(self) -> float:
        """Call before the constraint is asked; the result goes to `end`."""
        return self._clock()

    def end(self, begun: float) -> None:
        """Count the time since `begin`."""
        seconds = self._clock() - begun
        if seconds <= STEP_SECONDS:
            return
        if self._clock is time.thread_time:
            self._excess += seconds - STEP_SECONDS
        else:
            self._clock = time.thread_time
