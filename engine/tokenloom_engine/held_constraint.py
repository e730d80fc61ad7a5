"""A constraint as its sequence has it: with its mask, and with what is known to follow."""

from __future__ import annotations

import logging
from collections.abc import Sequence as Seq

from tokenloom_engine.constraints.allowance import TOO_DEAR, Allowance
from tokenloom_engine.constraints.base import Captures
from tokenloom_engine.constraints.factory import Lease
from tokenloom_engine.constraints.masks import Mask, wait_for
from tokenloom_engine.constraints.outlook import Outlook

logger = logging.getLogger(__name__)


class ConstraintFailedError(Exception):
    """The constraint cannot go on: the reason, for its client."""

    def __init__(self, reason: str, *, is_own: bool = False) -> None:
        """`is_own`: the constraint says so itself. Otherwise its library raised something."""
        super().__init__(reason)
        self.is_own = is_own


class HeldConstraint:
    """One sequence's own constraint, from its lease to its return.

    Whatever a library raises comes out as ConstraintFailedError: it ends this sequence alone.
    """

    def __init__(self, lease: Lease, *, in_runs: bool) -> None:
        """`in_runs`: forced tokens are wanted all at once, and not each by a forward of its own."""
        self.compiled, self.constraint, first_mask, self._latency = lease
        self.mask: Mask | None = first_mask
        """What it allows next; None before anyone asked for its present state."""
        self.in_runs = in_runs
        self._num_words = len(first_mask.allowed)
        self._foreseen: list[int] = []
        """Tokens that must follow, one by one: until they are there, no mask is needed."""
        self._allowance = Allowance(self._latency)

    @property
    def needs_mask(self) -> bool:
        """Whether it must still be asked before the next token is drawn."""
        return self.mask is None and not self._foreseen

    @property
    def is_ready(self) -> bool:
        """Whether it is known what may be drawn."""
        return bool(self._foreseen) if self.mask is None else self.mask.is_ready

    @property
    def is_slow(self) -> bool:
        """Whether masks took long, so that the next one may."""
        return self.compiled.is_slow or self.constraint.is_dear

    @property
    def is_terminated(self) -> bool:
        """Whether nothing but the end can follow."""
        return self.constraint.is_terminated

    @property
    def is_healed(self) -> bool:
        """Whether it was there for a prefix alone, and the prefix is complete."""
        is_prefix = self.mask is None and self.compiled.spec.kind == "text"
        return is_prefix and self.constraint.is_accepting

    @property
    def can_look_ahead(self) -> bool:
        """Whether it is idle and can tell of states after this one."""
        if self.mask is not None and (not self.mask.is_ready or self.mask.error is not None):
            return False
        if self.mask is not None and self.mask.ahead is not None:
            return False  # it was late with that in this very state, and would be again
        if self.compiled.spec.kind == "text" or self.compiled.sets_temperature:
            return False  # it leaves when its prefix is there; its thermometer cannot go back
        is_slow = self.is_slow or self.compiled.look_aheads.is_slow
        return not is_slow and self.constraint.error is None

    def advance(self, ids: list[int]) -> None:
        """Take tokens that were chosen."""
        self.mask = None
        self._foreseen = self._foreseen[1:] if ids == self._foreseen[:1] else []
        try:
            begun = self._allowance.begin()
            is_accepted = self.constraint.accept_tokens(ids)
            self._allowance.end(begun)
            error = TOO_DEAR if self._allowance.is_overdrawn else self.constraint.error
        except Exception as problem:
            raise ConstraintFailedError(type(problem).__name__) from problem
        if error is not None:
            raise ConstraintFailedError(error, is_own=True)
        if not is_accepted:
            raise ConstraintFailedError("it refused its own token")

    def forced_tokens(self) -> list[int]:
        """Those that it leaves no choice about. Its mask must be ready."""
        # It may err on its mask, which then allows nothing but the end.
        error = self.mask.error if self.mask is not None else None
        if (error := error or self.constraint.error) is not None:
            raise ConstraintFailedError(error, is_own=True)
        try:
            begun = self._allowance.begin()
            forced = self.constraint.forced_tokens()
            self._allowance.end(begun)
        except Exception as problem:
            raise ConstraintFailedError(type(problem).__name__) from problem
        return forced

    def count_valid(self, drafts: Seq[int]) -> int:
        """How many of these tokens it would accept, from the first on."""
        try:
            return self.constraint.validate_tokens(drafts, briefly=True)
        except Exception as problem:
            raise ConstraintFailedError(type(problem).__name__) from problem

    def outlooks(self, num_drafts: int) -> list[Outlook] | None:
        """What may be drawn next, and then after each draft. It must be ready.

        None where it is not asked any more. They may be fewer than the drafts: what follows is not
        drawn in this step.
        """
        if self.mask is None:
            return [Outlook.only(self._foreseen[0], self._num_words)] if self._foreseen else None
        forced = self.forced_tokens()
        if not self.in_runs:
            self._foreseen = forced
        present = Outlook.of(self.constraint, self.mask.allowed, forced)
        return [present, *(self.mask.ahead or [])[:num_drafts]]

    def captures(self, num_extra: int) -> Captures:
        """Those of what it accepted but for so many tokens. It cannot go on afterwards."""
        if self.mask is not None:  # a stop string among forced tokens does not wait for it
            wait_for([self.mask], self._latency.limits.captures_patience)
            if not self.mask.is_ready:
                return {}
        try:
            if num_extra:
                self.constraint.rollback(num_extra)
            return self.constraint.captures()
        except Exception:  # whatever a library raises, the text is good
            logger.exception("captures could not be read")
            return {}
