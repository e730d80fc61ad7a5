"""Attention on a GPU: torch's FlashAttention for sequences of any lengths, over the paged cache."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch

from tokenloom_engine.attention.base import AttentionOptions, LayerSpec
from tokenloom_engine.batch import Batch, Row, to_device

PAGE = 256
"""FlashAttention 2, which torch brings along, has blocks of a multiple of so many tokens."""
MOST_KEY_DIM = 256
NEEDED = {"scale", "window_size", "enable_gqa", "seqused_k", "block_table"}
"""Arguments of torch's operation that its older releases lack."""
SPLITTING_RELEASE = (2, 13)
"""The first torch that splits keys of paged calls."""
AMPERE = (8, 0)
"""The first compute capability that FlashAttention 2 knows."""


@dataclass(frozen=True, slots=True)
class VarlenStep:
    """What all layers of a step share."""

    slots: torch.Tensor
    """int64 [tokens]: where in the cache their keys and values go."""
    tables: torch.Tensor
    """int32 [rows, most blocks of a row]"""
    query_starts: torch.Tensor
    """int32 [rows + 1]: row i's queries are those from query_starts[i] to query_starts[i + 1]."""
    key_starts: torch.Tensor
    """int32 [rows + 1]: the same of keys, as if they lay end to end."""
    lengths: torch.Tensor
    """int32 [rows]: how many keys a row's last query sees. Its others see one less each."""
    most_queries: int
    """The most that a row has."""
    most_keys: int
    """The most that a row may have."""


class VarlenAttention:
    """See AttentionBackend. Blocks are laid out [block_size, kv_heads, head_dim].

    There is one block more than was asked for, the scratch block. It belongs to no sequence.
    """

    def __init__(
        self,
        layers: list[LayerSpec],
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device,
        operation: Callable[..., torch.Tensor] | None = None,
        release: tuple[int, int] | None = None,
    ) -> None:
        """`operation` does what torch.nn.attention.varlen.varlen_attn does; None is that.

        `release`: the torch whose operation it is; None is the installed one.
        """
        self._operation = operation or _operation_of_torch()
        self._release = release or _torch_release()
        self.device = device
        self.block_size = block_size
        self.scratch_block = num_blocks
        self.step: VarlenStep | None = None
        """What the next forward attends. Whoever runs one without `prepare` may set it."""
        self._caches = {
            layer.index: [
                torch.zeros(
                    num_blocks + 1,
                    block_size,
                    layer.num_kv_heads,
                    layer.key_dim,
                    dtype=dtype,
                    device=device,
                )
                for _ in range(2)
            ]
            for layer in layers
        }

    def prepare(self, batch: Batch) -> None:
        """See AttentionBackend."""
        rows = batch.rows
        lengths = np.asarray([row.end for row in rows], dtype=np.int32)
        self.step = VarlenStep(
            batch.slots,
            to_device(block_tables(rows, self.block_size), self.device),
            to_device(_starts([row.count for row in rows]), self.device),
            to_device(_starts(lengths), self.device),
            to_device(lengths, self.device),
            max(row.count for row in rows),
            int(lengths.max()),
        )

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        options: AttentionOptions,
    ) -> torch.Tensor:
        """See AttentionBackend."""
        assert self.step is not None
        assert options.softcap is None and options.sinks is None, "see `layers_refusal`"
        step = self.step
        keys, values = self._caches[layer]
        n = len(step.slots)  # without the batch's copy of a single token
        keys.flatten(0, 1).index_copy_(0, step.slots, key[:n])
        values.flatten(0, 1).index_copy_(0, step.slots, value[:n])
        call = call_options(
            self._release,
            step.most_queries,
            options.sliding_window,
            heads=query.shape[1],
            kv_heads=key.shape[1],
        )
        output = self._operation(
            query[:n],
            keys,
            values,
            step.query_starts,
            step.key_starts,
            step.most_queries,
            step.most_keys,
            scale=options.scaling,
            enable_gqa=query.shape[1] != key.shape[1],
            seqused_k=step.lengths,
            block_table=step.tables,
            **call,
        )
        if n == len(query):
            return output
        whole = query.new_zeros(len(query), *output.shape[1:])
        whole[:n] = output
        return whole


def call_options(
    release: tuple[int, int], most_queries: int, window: int | None, *, heads: int, kv_heads: int
) -> dict[str, Any]:
    """The arguments that make FlashAttention 2 right, and fast where it can be.

    From torch 2.13 on it may split the keys of paged calls among thread blocks, and then writes
    the parts of all rows to the first one (https://github.com/pytorch/pytorch/issues/194167). It
    does not where `num_splits` is 1, which older releases refuse. It splits rightly where it packs
    the query heads of a key head: with a single query a row, without a window. A single query is
    the last one, so a call without an end to the right has the same numbers.
    """
    if most_queries == 1 and window is None and heads > kv_heads:
        return {"window_size": (-1, -1)}
    options: dict[str, Any] = {"window_size": (-1 if window is None else window - 1, 0)}
    if release >= SPLITTING_RELEASE:
        options["num_splits"] = 1
    return options


def block_tables(
    rows: list[Row], block_size: int
) -> np.ndarray[tuple[int, int], np.dtype[np.int32]]:
    """int32 [rows, most blocks of a row]: the blocks of each row's keys, then zeros."""
    counts = [-(-row.end // block_size) for row in rows]
    tables = np.zeros((len(rows), max(counts)), dtype=np.int32)
    for table, row, count in zip(tables, rows, counts, strict=True):
        table[:count] = row.sequence.block_table[:count]
    return tables


def refusal(block_size: int | None, dtype: torch.dtype, device: torch.device) -> str | None:
    """Why such a cache on this device cannot be served, whatever the model."""
    if device.type != "cuda":
        return "needs a GPU"
    if torch.cuda.get_device_capability(device) < AMPERE:
        return "needs a GPU of compute capability 8.0 or newer"
    if dtype not in (torch.float16, torch.bfloat16):
        return "needs `dtype` float16 or bfloat16"
    if block_size is not None and block_size % PAGE:
        return f"needs a `block_size` that is a multiple of {PAGE}"
    return _version_refusal()


def layers_refusal(layers: list[LayerSpec]) -> str | None:
    """Why these layers cannot be attended so."""
    for layer in layers:
        if layer.softcap is not None:
            return "has no soft-cap"
        if layer.has_sinks:
            return "has no sinks"
        if layer.key_dim != layer.value_dim:
            return "needs keys and values of one size"
        if layer.key_dim % 8 or layer.key_dim > MOST_KEY_DIM:
            return f"needs heads of a multiple of 8 and at most {MOST_KEY_DIM} numbers"
    return None


def _torch_release() -> tuple[int, int]:
    major, minor = torch.__version__.split(".")[:2]
    return int(major), int(minor)


def _operation_of_torch() -> Callable[..., torch.Tensor]:
    from torch.nn.attention.varlen import varlen_attn

    return cast("Callable[..., torch.Tensor]", varlen_attn)


def _version_refusal() -> str | None:
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        missing = NEEDED
    else:
        missing = NEEDED - inspect.signature(varlen_attn).parameters.keys()
    if missing:
        return f"needs a newer torch: that of {torch.__version__} has no `{min(missing)}`"
    return None


def _starts(
    counts: list[int] | np.ndarray[tuple[int], np.dtype[np.int32]],
) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    """Where each part begins if they lie end to end, and where the last one ends."""
    starts = np.zeros(len(counts) + 1, dtype=np.int32)
    np.cumsum(counts, out=starts[1:])
    return starts
