"""Some steps of a constraint, as a text would take them, before anybody relies on it."""

from __future__ import annotations

import random

import numpy as np

from tokenloom_engine.constraints.allowance import TOO_DEAR, Allowance
from tokenloom_engine.constraints.base import (
    Bitmask,
    Constraint,
    ConstraintBackend,
    InvalidConstraintError,
)
from tokenloom_engine.constraints.latency import Latency

MAX_STEPS = 8
MAX_FORCED = 64
"""As many as join a running sequence's step."""


def rehearse(
    constraint: Constraint, backend: ConstraintBackend, bitmask: Bitmask, latency: Latency
) -> None:
    """Go on from a state whose mask is filled, by tokens drawn among those allowed.

    Raises InvalidConstraintError if the constraint errs on what every text has in common, or would
    hold up other sequences. Whatever it comes to behind a choice may never be chosen.
    """
    allowance = Allowance(latency)
    _follow(constraint, allowance, most=None)
    if constraint.is_dear:  # it may have put off what it was to accept
        backend.fill_bitmasks([(constraint, 0)], bitmask)
    if constraint.error is not None:  # it could not even begin
        raise InvalidConstraintError(constraint.error)
    draw = random.Random(0)
    had_choice = False
    clock = latency.clock
    seconds_left = latency.limits.rehearsal  # what is slow to accept shows soon
    for _ in range(MAX_STEPS):
        if seconds_left < 0 or not _goes_on(constraint):
            break
        begun = clock.begin()
        backend.fill_bitmasks([(constraint, 0)], bitmask)
        seconds_left -= clock.end(begun)
        allowed = np.flatnonzero(np.unpackbits(bitmask[0].view(np.uint8), bitorder="little"))
        if constraint.error is not None and not had_choice:
            raise InvalidConstraintError(constraint.error)
        if not _goes_on(constraint) or not len(allowed):
            break
        had_choice |= len(allowed) > 1
        begun = allowance.begin()
        constraint.accept_tokens([int(draw.choice(allowed))])
        allowance.end(begun)
        _follow(constraint, allowance, most=MAX_FORCED)
    if allowance.is_overdrawn:
        raise InvalidConstraintError(TOO_DEAR)


def _goes_on(constraint: Constraint) -> bool:
    return constraint.error is None and not constraint.is_terminated


def _follow(constraint: Constraint, allowance: Allowance, most: int | None) -> None:
    """Accept what is forced."""
    begun = allowance.begin()
    forced = constraint.forced_tokens()[:most]
    allowance.end(begun)
    if forced:
        begun = allowance.begin()
        constraint.accept_tokens(forced)
        allowance.end(begun)
