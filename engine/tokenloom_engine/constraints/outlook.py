"""What a constraint says of the states that drafts would lead it to."""

from __future__ import annotations

from contextlib import suppress
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokenloom_engine.constraints.base import Bitmask, Constraint, ConstraintBackend

BITS = (np.uint32(1) << np.arange(32, dtype=np.uint32)).view(np.int32)
"""The words of a bitmask with one bit set."""


class Outlook(NamedTuple):
    """What may follow in one state."""

    allowed: NDArray[np.int32]
    """[ceil(vocab_size / 32)]; the first forced token alone, if there is one."""
    is_forced: bool
    temperature: float | None

    @classmethod
    def of(cls, constraint: Constraint, allowed: NDArray[np.int32], forced: list[int]) -> Outlook:
        """That of the present state, whose mask and forced tokens are known."""
        if not forced:
            return cls(allowed, is_forced=False, temperature=constraint.temperature)
        # Wanted one at a time, or known too late for this forward: the tokens are the same.
        return cls.only(forced[0], len(allowed))

    @classmethod
    def only(cls, id: int, num_words: int) -> Outlook:
        """That of a state that one token alone can follow."""
        allowed = np.zeros(num_words, dtype=np.int32)
        allowed[id // 32] = BITS[id % 32]
        return cls(allowed, is_forced=True, temperature=None)


class Path(NamedTuple):
    """Tokens that a constraint accepted, and drafts that it would."""

    accepted: list[int]
    drafts: tuple[int, ...]


def outlooks(
    backend: ConstraintBackend, constraint: Constraint, path: Path, bitmask: Bitmask
) -> list[Outlook]:
    """One for each draft, up to where the text must end or the constraint errs.

    Row 1 of the bitmask is for the state after the first draft. The constraint comes back to the
    state in which it is.
    """
    found: list[Outlook] = []
    is_back = False
    with suppress(Exception):  # whatever a library raises: no more than a guess led there
        is_back = _walk(backend, constraint, path.drafts, bitmask, found)
    if not is_back:
        constraint.reset()
        constraint.accept_tokens(path.accepted)
    return found


def _walk(
    backend: ConstraintBackend,
    constraint: Constraint,
    drafts: tuple[int, ...],
    bitmask: Bitmask,
    found: list[Outlook],
) -> bool:
    """Go and come back. False if the constraint erred on the way, so that it cannot."""
    count = 0
    for row, id in enumerate(drafts, start=1):
        if not constraint.accept_tokens([id]):
            break
        count += 1
        if constraint.is_terminated:
            break
        backend.fill_bitmasks([(constraint, row)], bitmask)
        if constraint.error is not None or constraint.is_terminated:
            break
        found.append(Outlook.of(constraint, bitmask[row], constraint.forced_tokens()))
    if constraint.error is not None:
        return False
    constraint.rollback(count)
    return True
