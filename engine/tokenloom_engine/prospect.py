"""A token that is to be drawn, and what is known of it before."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tokenloom_engine.messages import Submit
from tokenloom_engine.sequence import Sequence


@dataclass(slots=True, frozen=True)
class Prospect:
    """The next token of a sequence, or one after it, if the drafts between them are right."""

    sequence: Sequence
    drafts: tuple[int, ...] = ()
    """What stands between the sequence's last token and this one."""
    allowed: NDArray[np.int32] | None = None
    """[V / 32] words of bits: which tokens the constraint allows; None is all."""
    grammar_temperature: float | None = None
    """What the constraint says of its temperature."""
    is_forced: bool = False
    """Whether the constraint leaves no choice, and forced tokens are wanted."""

    @property
    def submit(self) -> Submit:
        """What was asked of the sequence."""
        return self.sequence.submit

    @property
    def ids(self) -> list[int]:
        """All tokens before it. Not to be changed."""
        ids = self.sequence.ids
        return [*ids, *self.drafts] if self.drafts else ids

    @property
    def num_generated(self) -> int:
        """How many of them are generated."""
        return self.sequence.num_generated + len(self.drafts)

    @property
    def is_early(self) -> bool:
        """Whether it comes before the minimum length is reached."""
        return self.num_generated < self.submit.stopping.min_new_tokens

    @property
    def can_suppress(self) -> bool:
        """Whether something besides the constraint may rule tokens out."""
        return bool(self.submit.logits_processors) or self.is_early

    @property
    def temperature(self) -> float:
        """The constraint's or else the request's; 0 is greedy."""
        if self.grammar_temperature is not None:
            return self.grammar_temperature
        sampling = self.submit.sampling
        return 0.0 if sampling.greedy else sampling.temperature

    @property
    def has_choice(self) -> bool:
        """Whether there is more than one token to draw, as far as the constraint goes."""
        if self.allowed is None:
            return True
        return int(np.bitwise_count(self.allowed.view(np.uint32)).sum()) > 1


def prospects(sequence: Sequence, drafts: tuple[int, ...]) -> list[Prospect]:
    """The next token, and one more for each draft, up to where the constraint ends the text.

    The sequence's mask must be ready. Ends the sequence if its constraint cannot say.
    """
    outlooks = sequence.outlooks(drafts)
    if outlooks is None:
        return [Prospect(sequence, drafts[:count]) for count in range(len(drafts) + 1)]
    return [
        Prospect(
            sequence,
            drafts[:count],
            outlook.allowed,
            outlook.temperature,
            is_forced=outlook.is_forced and sequence.submit.forced_tokens,
        )
        for count, outlook in enumerate(outlooks)
    ]
