"""A constraint that xgrammar steps."""

from __future__ import annotations

from collections.abc import Sequence as Seq

import numpy as np
from xgrammar import GrammarMatcher

from tokenloom_engine.constraints.base import Bitmask, Captures

BYTES = [bytes([byte]) for byte in (*range(0x20, 0x7F), *range(0x20), *range(0x7F, 0x100))]
"""All of them, likely ones first."""


class XgrammarConstraint:
    """A GrammarMatcher that, unlike the library's, terminates when only EOS can follow."""

    is_dear = False
    temperature = None

    def __init__(
        self, matcher: GrammarMatcher, eos_token_ids: Seq[int], num_accepted: int = 0
    ) -> None:
        """`num_accepted` is the number of tokens that the matcher has accepted."""
        self._matcher = matcher
        self._eos_token_ids = eos_token_ids
        self._num_accepted = num_accepted
        self._is_terminated: bool | None = None
        """None until it is computed for the present state."""
        self.error: str | None = None

    @property
    def is_accepting(self) -> bool:
        """See Constraint."""
        return self._matcher.is_completed()

    @property
    def is_terminated(self) -> bool:
        """See Constraint."""
        if self._is_terminated is None:
            has_ended = self.error is not None or self._matcher.is_terminated()
            self._is_terminated = has_ended or self._is_at_end()
        return self._is_terminated

    def accept_tokens(self, ids: Seq[int]) -> bool:
        """See Constraint."""
        self._is_terminated = None
        for id in ids:
            if self.error is not None:
                return False
            try:
                if self._matcher.is_terminated() or not self._matcher.accept_token(id):
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
            if self._matcher.is_terminated() or not self._matcher.accept_token(id):
                break
            count += 1
        self._matcher.rollback(count)
        return count

    def forced_tokens(self) -> list[int]:
        """See Constraint. None: xgrammar forces text, and the tokens of a text may depend on what
        follows it.
        """
        return []

    def rollback(self, count: int) -> None:
        """See Constraint."""
        if count > self._num_accepted:
            raise ValueError(f"{self._num_accepted} tokens were accepted, fewer than {count}")
        if count:
            self._matcher.rollback(count)
            self._num_accepted -= count
            self._is_terminated = None

    def reset(self) -> None:
        """See Constraint."""
        self._matcher.reset()
        self._num_accepted = 0
        self._is_terminated = None
        self.error = None

    def fork(self) -> XgrammarConstraint:
        """See Constraint. (The library's own copies share nothing that changes.)"""
        return XgrammarConstraint(self._matcher.fork(), self._eos_token_ids, self._num_accepted)

    def captures(self) -> Captures:
        """See Constraint. None: JSON and choices have no named parts."""
        return {}

    def fill_bitmask(self, bitmask: Bitmask, row: int) -> None:
        """Write the allowed tokens to a row, or set `error`. After EOS, only EOS is allowed."""
        try:
            if not self._matcher.is_terminated():
                self._matcher.fill_next_token_bitmask(bitmask, row)
                return
        except RuntimeError as error:
            self.error = f"the matcher failed: {type(error).__name__}"
            return
        bitmask[row] = 0
        bits = bitmask[row].view(np.uint32)
        for id in self._eos_token_ids:
            bits[id // 32] |= np.uint32(1 << (id % 32))

    def _is_at_end(self) -> bool:
        """Whether the text may end here and must: cheaper to tell byte by byte than by a mask."""
        return self.is_accepting and not any(map(self._can_follow, BYTES))

    def _can_follow(self, byte: bytes) -> bool:
        can_follow = self._matcher.accept_string(byte)
        if can_follow:
            self._matcher.rollback(1)
        return can_follow
