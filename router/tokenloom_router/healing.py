"""Token healing: the end of a prompt is tokenized anew, together with what follows it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from heapq import merge

import msgspec

from tokenloom_engine.constraints.spec import ConstraintSpec
from tokenloom_router.tokenizer import Tokenizer

RUN_LENGTH = 4096
"""Tokens that are sorted in one go, which holds the GIL."""


@dataclass(frozen=True, slots=True)
class HealedPrompt:
    """A prompt whose last tokens are to be generated anew."""

    ids: list[int]
    """The tokens that stay."""
    num_healed: int
    """How many tokens were taken off."""
    text: str
    """Their text, with which the generation has to begin."""

    def constraint(self, spec: ConstraintSpec | None) -> ConstraintSpec | None:
        """The constraint under which the text comes again, with what the request's own says."""
        if not self.num_healed:
            return spec
        return msgspec.structs.replace(spec or ConstraintSpec("text"), prefix=self.text)


class TokenHealing:
    """Finds the tokens at a prompt's end that a longer prompt would perhaps not have.

    A tokenizer that had seen more text would have taken a longer token where one exists: after
    `http`, models know the token `://` and hardly ever saw `:` alone. Safe in any thread.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def heal(self, ids: Sequence[int]) -> HealedPrompt:
        """Back up over the most tokens that together begin another token, longer than they are.

        A token of text always stays in front of them: a decoder may spell the first word of a
        text without its space.
        """
        num_healed, text = 0, ""
        is_special = self._tokenizer.is_special
        for count in range(1, min(len(ids), self._longest)):
            before, *end = ids[-count - 1 :]
            if is_special(before) or is_special(end[0]):
                break
            end_text = self._tokenizer.text_behind(before, end)
            if end_text is None:
                continue
            if len(end_text) >= self._longest:
                break
            if self._begins_longer_token(end_text):
                num_healed, text = count, end_text
        return HealedPrompt(list(ids[: len(ids) - num_healed]), num_healed, text)

    def _begins_longer_token(self, text: str) -> bool:
        index = bisect_right(self._sorted, text)
        return index < len(self._sorted) and self._sorted[index].startswith(text)

    @cached_property
    def _sorted(self) -> list[str]:
        """The vocabulary. It is read when the first prompt is healed."""
        texts = self._tokenizer.texts()
        runs = [sorted(texts[i : i + RUN_LENGTH]) for i in range(0, len(texts), RUN_LENGTH)]
        return list(merge(*runs))

    @cached_property
    def _longest(self) -> int:
        return len(max(self._sorted, key=len))
