"""What a constraint is, and what a library must offer to provide them."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tokenloom_engine.constraints.spec import ConstraintSpec

Bitmask = NDArray[np.int32]
"""[rows, ceil(vocab_size / 32)]: bit i of word w allows token 32 * w + i."""


class InvalidConstraintError(ValueError):
    """The spec cannot become a constraint; the message is the library's reason."""


class Constraint(Protocol):
    """The state machine that limits one sequence's tokens. Never shared between sequences.

    Errors are sticky: once `error` is set, nothing else means anything until the constraint is
    thrown away.
    """

    @property
    def error(self) -> str | None:
        """Why the constraint cannot go on, or None."""
        ...

    @property
    def is_terminated(self) -> bool:
        """Whether nothing but the end can follow, even if no EOS token was accepted yet."""
        ...

    def accept_tokens(self, ids: Seq[int]) -> bool:
        """Advance by tokens that were chosen; False (and `error`) if one was not allowed."""
        ...

    def forced_tokens(self) -> list[int]:
        """The tokens that must follow now. The state does not change. Empty if there is a choice.

        They are those that the tokenizer itself would make of the forced text.
        """
        ...

    def reset(self) -> None:
        """Go back to the start, keeping what was learned on the way (warm caches)."""
        ...


class ConstraintBackend(Protocol):
    """A library that compiles specs: one module under `constraints/`, named like the option."""

    def validate(self, spec: ConstraintSpec) -> list[str]:
        """Returns warnings. Raises InvalidConstraintError with the reason. Safe in any thread."""
        ...

    def create(self, spec: ConstraintSpec) -> Constraint:
        """Compile a new constraint. Raises InvalidConstraintError. Safe in any thread."""
        ...

    def fill_bitmasks(self, rows: Seq[tuple[Constraint, int]], bitmask: Bitmask) -> None:
        """Write each constraint's allowed tokens to its row, in parallel, without the GIL.

        The constraints are this back end's own and must not be used meanwhile.
        """
        ...
