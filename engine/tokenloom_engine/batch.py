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

    @property
    def num_logits(self) -> int:
        """Logits that are wanted: N without the copy."""
        return sum(row.num_logits for row in self.rows)

    @classmethod
    def pack(
        cls, rows: list[Row], block_size: int, device: torch.device, *, twin: bool = True
    ) -> Batch:
        """Lay the rows end to end. Every row's blocks must be allocated."""
        ids: list[int] = []
        positions, slots, logits = [], [], []
        for row in rows:
            offset = len(ids)
            ids += row.sequence.ids[row.start : row.known_end]
            ids += row.drafts
            position = np.arange(row.start, row.end)
            table = np.asarray(row.sequence.block_table, dtype=np.int64)
            positions.append(position)
            slots.append(table[position // block_size] * block_size + position % block_size)
            logits.append(np.arange(row.first_logit, row.end) - row.start + offset)

        def tensor(values: NDArray[np.int64]) -> torch.Tensor:
            values = values.repeat(2) if twin and len(values) == 1 else values
            return to_device(values, device)

        return cls(
            rows,
            tensor(np.asarray(ids)).unsqueeze(0),
            tensor(np.concatenate(positions)).unsqueeze(0),
            to_device(np.concatenate(slots), device),
            tensor(np.concatenate(logits)),
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
