"""What an attention back end must offer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from tokenloom_engine.batch import Batch


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """One attention layer, as the model was seen to call it."""

    index: int
    num_kv_heads: int
    key_dim: int
    value_dim: int
    sliding_window: int | None
    softcap: float | None = None
    has_sinks: bool = False

    def bytes_per_token(self, dtype: torch.dtype) -> int:
        """What the layer keeps of each token."""
        return self.num_kv_heads * (self.key_dim + self.value_dim) * dtype.itemsize


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionOptions:
    """How one layer wants its scores: what transformers hands over besides q, k and v."""

    scaling: float
    sliding_window: int | None = None
    """A query sees so many keys at most, its own included."""
    softcap: float | None = None
    """Scores become softcap * tanh(score / softcap)."""
    sinks: torch.Tensor | None = None
    """[heads]: a score per head that takes part in the softmax and has no value."""


class AttentionBackend(Protocol):
    """Paged attention over packed rows. Owns the KV cache and the layout of its blocks."""

    def prepare(self, batch: Batch) -> None:
        """Build what all layers of the step share. Called before each forward.

        May reorder nothing: row i's tokens stay where `batch` has them.
        """
        ...

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        options: AttentionOptions,
    ) -> torch.Tensor:
        """Store the step's keys and values, then let each query see those of its own sequence.

        `batch.slots` may be shorter than T: what lies beyond belongs to no sequence.
        query [T, heads, key_dim], key [T, kv_heads, key_dim], value [T, kv_heads, value_dim],
        all positions encoded. Returns [T, heads, value_dim].
        """
        ...
