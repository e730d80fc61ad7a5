"""The constraints' part in a step: asked as early as possible, and never waited for long."""

from __future__ import annotations

from collections.abc import Iterable

from tokenloom_engine.batch import Row
from tokenloom_engine.constraints.factory import ConstraintFactory
from tokenloom_engine.constraints.masks import wait_for
from tokenloom_engine.forward_clock import ForwardClock
from tokenloom_engine.sequence import Sequence


class StepMasks:
    """Has the masks of running sequences filled in time, and takes their constraints back."""

    def __init__(self, factory: ConstraintFactory, clock: ForwardClock) -> None:
        self._factory = factory
        self._clock = clock

    def start(self, sequences: Iterable[Sequence]) -> None:
        """Begin to fill the masks of those whose constraints were not asked since they moved."""
        asking = []
        for sequence in sequences:
            if sequence.needs_mask and sequence.constraint is not None:
                try:
                    is_healed = sequence.constraint.is_healed
                except Exception as error:
                    sequence.break_off(error)
                    continue
                if is_healed:
                    self.give_back(sequence)  # any text may follow
                else:
                    asking.append(sequence.constraint)
        if asking:
            rows = [(held.compiled, held.constraint) for held in asking]
            for held, mask in zip(asking, self._factory.start_filling(rows), strict=True):
                held.mask = mask

    def look_ahead(self, rows: Iterable[Row]) -> None:
        """Begin to find out what the constraints of these rows say after each of their drafts."""
        for row in rows:
            held = row.sequence.constraint
            if held is not None:
                try:
                    path = row.sequence.path(row.drafts)
                except Exception as error:
                    row.sequence.break_off(error)
                    continue
                held.mask = self._factory.look_ahead(
                    held.compiled, held.constraint, held.mask, path
                )

    def ready_for_forced_tokens(self, running: Iterable[Sequence]) -> list[Sequence]:
        """Those that may have them before the forward. Who was late is late no more."""
        masked = [s for s in running if s.constraint is not None and s.constraint.mask is not None]
        # Others need their masks only when the forward has ended.
        asking = [
            s for s in masked if not s.is_late and (s.forces_in_runs or s.drafter is not None)
        ]
        self._wait_for_quick(asking)
        ready = [s for s in masked if s.has_mask and (s.forces_in_runs or s.is_late)]
        for sequence in ready:
            sequence.is_late = False
        return ready

    def wait_beside_forward(self, drawing: list[Sequence], *, are_all: bool) -> None:
        """Wait for the masks of those that are about to draw; who has none then is late.

        `are_all`: nobody else is in the step.
        """
        late = [sequence for sequence in drawing if not sequence.has_mask]
        if late:
            # While a GPU computes, waiting costs nothing.
            while self._clock.is_running and not all(s.has_mask for s in _quick(late)):
                self._wait_for_quick(late)
            self._wait_for_quick(late)
            if are_all and not any(sequence.has_mask for sequence in drawing):
                self.wait_for_any(drawing, self._factory.latency.limits.lonely_patience)
        for sequence in drawing:
            sequence.is_late = not sequence.has_mask

    def wait_for_any(self, sequences: Iterable[Sequence], seconds: float | None = None) -> None:
        """For so long, whether or not their grammars are slow: nobody is held up."""
        held = [s.constraint for s in sequences if s.constraint is not None]
        if seconds is None:
            seconds = self._factory.latency.limits.patience
        wait_for([h.mask for h in held if h.mask is not None], seconds)

    def give_back(self, sequence: Sequence) -> None:
        """Return a sequence's constraint, if it has one."""
        held, sequence.constraint = sequence.constraint, None
        if held is not None:
            self._factory.return_constraint(held.compiled, held.constraint, held.mask)

    def _wait_for_quick(self, sequences: list[Sequence]) -> None:
        """Not for masks whose grammar's last one was slow."""
        self.wait_for_any(_quick(sequences))


def _quick(sequences: list[Sequence]) -> list[Sequence]:
    return [s for s in sequences if s.constraint is not None and not s.constraint.is_slow]
