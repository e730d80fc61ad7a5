"""What a constraint is, and what a library must offer to provide them."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tokenloom_engine.constraints.spec import ConstraintKind, ConstraintSpec

Bitmask = NDArray[np.int32]
"""[rows, ceil(vocab_size / 32)]: bit i of word w allows token 32 * w + i."""

Captures = dict[str, str | list[str]]
"""The texts of a grammar's named parts; a list where a part may occur several times."""


class InvalidConstraintError(ValueError):
    """The spec cannot become a constraint; the message is the library's reason."""

    def __init__(self, reason: str, place: str | None = None) -> None:
        """`place`: the JSON pointer of what is to blame in a schema, if it is known."""
        super().__init__(reason if place is None else f"{reason} (at {place})")
        self.reason = reason
        self.place = place


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerFacts:
    """What a constraint library needs to know of the tokenizer and the model."""

    json: str
    """The text of its tokenizer.json."""
    vocab_size: int
    """Width of the logits; may exceed the number of the tokenizer's entries."""
    eos_token_ids: tuple[int, ...]
    """All tokens that end a text, ascending."""
    num_threads: int
    """How many masks may be computed at once."""


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
    def is_accepting(self) -> bool:
        """Whether the text could end here."""
        ...

    @property
    def is_terminated(self) -> bool:
        """Whether nothing but the end can follow, even if no EOS token was accepted yet."""
        ...

    @property
    def is_dear(self) -> bool:
        """Whether its next mask may take long, as far as can be told: nobody should wait for it.

        Such a constraint may put off what it accepts until that mask is filled: before, `error`
        and `is_terminated` are those of an earlier state.
        """
        ...

    @property
    def temperature(self) -> float | None:
        """What the grammar says of the next token's temperature, if it does; 0 is greedy.

        Valid once the state's mask was filled.
        """
        ...

    def accept_tokens(self, ids: Seq[int]) -> bool:
        """Advance by tokens that were chosen; False (and `error`) if one was not allowed."""
        ...

    def validate_tokens(self, ids: Seq[int], *, briefly: bool = False) -> int:
        """How many of these tokens, from the first on, would be accepted. The state is the same.

        `briefly`: it may say fewer where it would take long to tell.
        """
        ...

    def forced_tokens(self) -> list[int]:
        """The tokens that must follow now. The state does not change. Empty if there is a choice.
        Not all of them where it would take long to tell.

        They are those that the tokenizer itself would make of the forced text. Cheap once the
        state's mask was filled; before that it may be as slow as the mask, and holds the GIL.
        """
        ...

    def rollback(self, count: int) -> None:
        """Take back the last `count` accepted tokens. Raises ValueError if there are fewer."""
        ...

    def reset(self) -> None:
        """Go back to the start, keeping what was learned on the way (warm caches).

        What set `error` after the start is forgotten.
        """
        ...

    def fork(self) -> Constraint:
        """A constraint in the same state that shares nothing with this one: made by replay."""
        ...

    def captures(self) -> Captures:
        """What the grammar's named parts matched so far; nothing where that takes long to tell."""
        ...


class ConstraintBackend(Protocol):
    """A library that compiles specs: one module under `backends/`, named like the option."""

    @property
    def kinds(self) -> frozenset[ConstraintKind]:
        """The kinds of specs that it compiles."""
        ...

    def validate(self, spec: ConstraintSpec) -> list[str]:
        """Returns warnings. Raises InvalidConstraintError with the reason. Safe in any thread."""
        ...

    def create(self, spec: ConstraintSpec) -> Constraint:
        """Compile a new constraint. Raises InvalidConstraintError. Safe in any thread."""
        ...

    def fill_bitmasks(self, rows: Seq[tuple[Constraint, int]], bitmask: Bitmask) -> None:
        """Write each constraint's allowed tokens to its row, in parallel, without the GIL.

        The constraints are this back end's own and must not be used meanwhile. One that fails
        has its `error` set; the others' rows are right all the same.
        """
        ...
