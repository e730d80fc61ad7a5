"""A packed, ragged batch: the rows of one step, laid end to end without padding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tokenloom_engine.sequence import Sequence


@dataclass(slots=True, frozen=True)
class Row:
    """One sequence's part in a step: `count` tokens from ids[start] on, and then its drafts."""

    sequence: Sequence
    start: int
    count: int
    """Tokens computed, drafts included."""
    is_prefill: bool
    drafts: tuple[int, ...] = ()
    """Guesses of what follows the sequence's last token: logits after each of them are wanted."""

    @property
    def end(self) -> int:
        """One past the last position computed; so many keys does the last query see."""
        return self.start + self.count

    @property
    def known_end(self) -> int:
        """One past the last position whose token is known, and not a draft."""
        return self.end - len(self.drafts)

    @property
    def first_logit(self) -> int:
        """The first position whose logits are wanted: it predicts the first unscored token."""
        return min(self.end, max(self.start, self.sequence.num_scored - 1))

    @property
    def num_logits(self) -> int:
        """How many of the row's last positions need logits."""
        return self.end - self.first_logit

    @property
    def draws(self) -> bool:
        """Whether the last logits are for tokens that are not known yet."""
        return self.known_end == len(self.sequence.ids)


@dataclass(slots=True, frozen=True)
class Batch:
    """The tensors of one forward over `rows`. T tokens, N logits.

    With a `twin`, a single token or logit is there twice. Matrix products of one row may round
    otherwise than those of more rows, and a lone sequence shall get the same logits as one in a
    crowd. The copy is computed along and read by nobody.
    """

    rows: list[Row]
    input_ids: torch.Tensor
    """int64 [1, T]"""
    position_ids: torch.Tensor
    """int64 [1, T]"""
    slots: torch.Tensor
    """int64, one for each token but the copy: block * block_size + offset, where its key and value
    go."""
    logit_positions: torch.Tensor
    """int64 [N], indices into T."""
    is_long: torch.Tensor | None
    """bool [1, T]: the tokens of texts beyond the rotary embedding's limit; None is none."""

    @property
    def num_logits(self) -> int:
        """Logits that are wanted: N without the copy."""
        return sum(row.num_logits for row in self.rows)

    @classmethod
    def pack(
        cls, rows: list[Row], block_size: int, device: torch.device, *, twin: bool = True
    ) -> Batch:
        """Lay the rows end to end.

        Raises IndexError if a row's blocks or tokens are fewer than its positions: it would write
        to those of the row behind it.
        """
        ids: list[int] = []
        blocks: list[int] = []
        starts, counts, first_blocks, first_logits, num_logits = [], [], [], [], []
        for row in rows:
            start, end, first_logit = row.start, row.end, row.first_logit
            first_block, last_block = start // block_size, (end - 1) // block_size
            table, known = row.sequence.block_table, row.sequence.ids
            if last_block >= len(table) or row.known_end > len(known):
                raise IndexError(f"position {end - 1} has no block or no token")
            first_blocks.append(len(blocks) - first_block)
            first_logits.append(first_logit - start + len(ids))
            num_logits.append(end - first_logit)
            starts.append(start - len(ids))
            counts.append(row.count)
            ids += known[start : row.known_end]
            ids += row.drafts
            blocks += table[first_block : last_block + 1]
        positions = np.arange(len(ids)) + np.repeat(starts, counts)
        places = positions // block_size + np.repeat(first_blocks, counts)
        slots = np.asarray(blocks)[places] * block_size + positions % block_size
        before = np.cumsum(num_logits) - num_logits
        logits = np.arange(sum(num_logits)) + np.repeat(first_logits - before, num_logits)
        is_long = [row.sequence.is_long for row in rows]

        def tensor(values: NDArray[Any]) -> torch.Tensor:
            values = values.repeat(2) if twin and len(values) == 1 else values
            return to_device(values, device)

        return cls(
            rows,
            tensor(np.asarray(ids)).unsqueeze(0),
            tensor(positions).unsqueeze(0),
            to_device(slots, device),
            tensor(logits),
            tensor(np.repeat(is_long, counts)).unsqueeze(0) if any(is_long) else None,
        )


def to_device(array: NDArray[Any], device: torch.device) -> torch.Tensor:
    """What the array holds. On a CPU it is the array's memory.

    A GPU copies while the caller goes on, from pinned memory that torch hands out again only when
    the copy has ended.
    """
    tensor = torch.from_numpy(array)
    if device.type == "cpu":
        return tensor
    return tensor.pin_memory().to(device, non_blocking=True)
