"""What a package's logits processors must be, and what they are told."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch

Args = Mapping[str, Any]
"""What a request gives a processor: strings, numbers, booleans, None, lists and dicts."""


class ProcessorError(Exception):
    """A processor failed. The message is for the client of its sequence."""


class LogitsProcessor(Protocol):
    """Changes what one sequence's next token is drawn from. Never shared between sequences."""

    def __call__(self, ids: Seq[int], scores: torch.Tensor, /) -> torch.Tensor:
        """The scores to draw from: `scores`, which may be changed in place, or a new tensor.

        `ids` is the prompt and what was generated. `scores` is float32 [V], after the penalties;
        ids without a token have -inf. So must be what is returned, on any device; -inf rules a
        token out, NaN and +inf are errors.

        Called once for each token drawn. Where the constraint leaves no choice it is not called:
        `ids` may have grown by several tokens since the last time.
        """
        ...

    def reset(self) -> None:
        """Forget the sequence: be as when it was made."""
        ...


@runtime_checkable
class LogitsProcessorFactory(Protocol):
    """Makes the processors of one name. One a process, and used by one thread.

    It runs between steps, while all sequences wait: loading and heavy work belong to its making.
    """

    def validate(self, args: Args, /) -> None:
        """Raises ValueError with the reason, which the client reads, if it cannot take these."""
        ...

    def get_processor(self, args: Args, /) -> LogitsProcessor:
        """A processor that nobody else has, as if new. The arguments are validated."""
        ...

    def return_processor(self, processor: LogitsProcessor, args: Args, /) -> None:
        """Take back what `get_processor(args)` gave, to keep or to drop.

        A processor that failed does not come back.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessorContext:
    """What a factory may need to know of the model."""

    vocab_size: int
    """V, the width of the scores; may exceed the number of the tokenizer's entries."""
    eos_token_ids: tuple[int, ...]
    """All tokens that end a text, ascending."""
    tokenizer_file: str
    """A tokenizer.json, to read with the tokenizers library."""
    device: str
    """Where the scores are, as torch names it."""
