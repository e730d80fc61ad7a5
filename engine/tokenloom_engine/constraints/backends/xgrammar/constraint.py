"""A constraint that xgrammar steps."""

from __future__ import annotations

from collections.abc import Sequence as Seq

import numpy as np
from numpy.typing import NDArray
from xgrammar import GrammarMatcher

from tokenloom_engine.constraints.backends.xgrammar.tokenizer import XgrammarTokenizer
from tokenloom_engine.constraints.base import Captures

BYTES = [bytes([byte]) for byte in (*range(0x20, 0x7F), *range(0x20), *range(0x7F, 0x100))]
"""All of them, likely ones first."""


class XgrammarConstraint:
    """One GrammarMatcher, which is terminated, unlike the library's, when only EOS can follow."""

    is_dear = False

    def __init__(
        self,
        matcher: GrammarMatcher,
        tokenizer: XgrammarTokenizer,
        *,
        can_force: bool,
        num_accepted: int = 0,
    ) -> None:
        """`can_force`: forced text has an end. `num_accepted`: the matcher's tokens so far."""
        self._matcher = matcher
        self._tokenizer = tokenizer
        self._can_force = can_force
        self._num_accepted = num_accepted
        self._is_terminated: bool | None = None
        """None before anyone asked for it in the present state."""
        self._forced: list[int] = []
        """What is known to follow: to find it out takes time by its length, each time."""
        self._likely = BYTES[0]
        """The byte that could follow when it was last asked."""
        self.error: str | None = None

    @property
    def matcher(self) -> GrammarMatcher:
        """What fills its masks, unless it `has_ended`."""
        return self._matcher

    @property
    def has_ended(self) -> bool:
        """Whether an EOS token was accepted."""
        return self._matcher.is_terminated()

    @property
    def is_accepting(self) -> bool:
        """See Constraint."""
        return self._matcher.is_completed()

    @property
    def is_terminated(self) -> bool:
        """See Constraint."""
        if self._is_terminated is None:
            self._is_terminated = self.error is not None or self.has_ended or self._is_at_end()
        return self._is_terminated

    @property
    def temperature(self) -> float | None:
        """See Constraint."""
        return self._matcher.temperature

    def accept_tokens(self, ids: Seq[int]) -> bool:
        """See Constraint."""
        self._is_terminated = None
        is_forced = list(ids) == self._forced[: len(ids)]
        self._forced = self._forced[len(ids) :] if is_forced else []
        for id in ids:
            if self.error is not None:
                return False
            try:
                if self.has_ended or not self._matcher.accept_token(id):
                    self.error = f"token {id} is not allowed"
                    return False
            except RuntimeError as error:
                self.error = f"the matcher failed: {type(error).__name__}"
                return False
            self._num_accepted += 1
        return self.error is None

    def validate_tokens(self, ids: Seq[int], *, briefly: bool = False) -> int:
        """See Constraint."""
        count = 0
        for id in ids:
            if self.has_ended or not self._matcher.accept_token(id):
                break
            count += 1
        self._matcher.rollback(count)
        return count

    def forced_tokens(self) -> list[int]:
        """See Constraint."""
        if self._forced:
            return list(self._forced)
        if not self._can_force or self.error is not None or self.has_ended:
            return []
        text = self._matcher.find_jump_forward_string()
        if not text or not self._matcher.accept_string(text):
            return []
        is_last = self._is_at_end()
        self._matcher.rollback(1)
        ids = self._tokenizer.tokens_of(text, is_last=is_last)
        # A budget of tokens may end before the text.
        self._forced = ids[: self.validate_tokens(ids)]
        return list(self._forced)

    def rollback(self, count: int) -> None:
        """See Constraint."""
        if count > self._num_accepted:
            raise ValueError(f"{self._num_accepted} tokens were accepted, fewer than {count}")
        if count:
            self._matcher.rollback(count)
            self._num_accepted -= count
            self._forced = []
            self._is_terminated = None

    def reset(self) -> None:
        """See Constraint."""
        self._matcher.reset()
        self._num_accepted = 0
        self._forced = []
        self._is_terminated = None
        self.error = None

    def fork(self) -> XgrammarConstraint:
        """See Constraint. (The library's own copies share nothing that changes.)"""
        return XgrammarConstraint(
            self._matcher.fork(),
            self._tokenizer,
            can_force=self._can_force,
            num_accepted=self._num_accepted,
        )

    def captures(self) -> Captures:
        """See Constraint."""
        captures: Captures = {}
        for name, matched in self._matcher.get_captures():
            text, known = matched.decode(errors="replace"), captures.get(name)
            if known is None:
                captures[name] = text
            else:
                captures[name] = [*([known] if isinstance(known, str) else known), text]
        return captures

    def fill_end(self, row: NDArray[np.int32]) -> None:
        """Allow the tokens that end the text, and no others."""
        row[:] = 0
        bits = row.view(np.uint32)
        for id in self._tokenizer.eos_token_ids:
            bits[id // 32] |= np.uint32(1 << (id % 32))

    def _is_at_end(self) -> bool:
        """Whether the text may end here and must: cheaper to tell byte by byte than by a mask."""
        if not self.is_accepting or self._can_follow(self._likely):
            return False
        for byte in BYTES:
            if self._can_follow(byte):
                self._likely = byte
                return False
        return True

    def _can_follow(self, byte: bytes) -> bool:
        can_follow = self._matcher.accept_string(byte)
        if can_follow:
            self._matcher.rollback(1)
        return can_follow
