"""Attention in plain torch: gather the blocks, then scaled_dot_product_attention.

It runs everywhere and is the reference for faster back ends.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import groupby

import numpy as np
import torch
import torch.nn.functional as F

from tokenloom_engine.attention.base import AttentionOptions, LayerSpec
from tokenloom_engine.batch import Batch, Row, to_device


@dataclass(slots=True)
class _Group:
    """Adjacent rows with equally many new tokens and equally many blocks, attended as one.

    Not with about as many: then a row's sums would depend on how long its neighbours are.
    """

    tokens: slice
    """Their places in the packed batch, rows * count."""
    blocks: torch.Tensor
    """int64 [rows * num_blocks]"""
    query_positions: torch.Tensor
    """int64 [rows, count]"""
    num_keys: int
    """num_blocks * block_size"""
    masks: dict[tuple[int | None, int], torch.Tensor] = field(default_factory=dict)
    """By sliding window and number of query heads for each KV head."""

    def mask(self, window: int | None, heads: int, dtype: torch.dtype) -> torch.Tensor:
        """[rows, 1, heads * count, num_keys]: 0 where a query sees a key, else -inf."""
        mask = self.masks.get((window, heads))
        if mask is None:
            query = self.query_positions.unsqueeze(-1)
            key = torch.arange(self.num_keys, device=query.device)
            hidden = key > query
            if window is not None:
                hidden |= key <= query - window
            mask = torch.zeros(hidden.shape, dtype=dtype, device=query.device)
            mask = mask.masked_fill_(hidden, -torch.inf).unsqueeze(1).repeat(1, 1, heads, 1)
            self.masks[window, heads] = mask
        return mask


class SdpaAttention:
    """See AttentionBackend. Blocks are laid out [block_size, kv_heads, head_dim]."""

    def __init__(
        self,
        layers: list[LayerSpec],
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self._block_size = block_size
        self._device = device
        self._groups: list[_Group] = []
        self._slots = torch.empty(0, dtype=torch.int64)
        self._workspaces = [torch.empty(0, dtype=dtype, device=device) for _ in range(2)]
        places = num_blocks * block_size
        self._caches = {
            layer.index: (
                _lazy_zeros(places, layer.num_kv_heads * layer.key_dim, dtype, device),
                _lazy_zeros(places, layer.num_kv_heads * layer.value_dim, dtype, device),
            )
            for layer in layers
        }

    def prepare(self, batch: Batch) -> None:
        """See AttentionBackend."""
        self._slots = batch.slots
        offset = 0
        self._groups = []
        for _, members in groupby(batch.rows, key=self._group_key):
            group = self._group(list(members), offset)
            self._groups.append(group)
            offset = group.tokens.stop

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        options: AttentionOptions,
    ) -> torch.Tensor:
        """See AttentionBackend."""
        keys, values = self._caches[layer]
        n = len(self._slots)  # without the batch's copy of a single token
        keys.index_copy_(0, self._slots, key[:n].flatten(1))
        values.index_copy_(0, self._slots, value[:n].flatten(1))
        output = query.new_zeros(query.shape[0], query.shape[1], value.shape[-1])
        for group in self._groups:
            rows, count = group.query_positions.shape
            k = self._gather(0, keys, group, key.shape[1:])
            v = self._gather(1, values, group, value.shape[1:])
            # Query heads that share a KV head are laid beside each other as more queries.
            heads = query.shape[1] // key.shape[1]
            q = query[group.tokens].view(rows, count, key.shape[1], heads, -1)
            q = q.permute(0, 2, 3, 1, 4).reshape(rows, key.shape[1], heads * count, -1)
            mask = group.mask(options.sliding_window, heads, query.dtype)
            o = _attention(q, k, v, mask, options)
            o = o.view(rows, key.shape[1], heads, count, -1).permute(0, 3, 1, 2, 4)
            output[group.tokens] = o.reshape(rows * count, query.shape[1], -1)
        return output

    def _group_key(self, row: Row) -> tuple[int, int]:
        num_blocks = -(-row.end // self._block_size)
        return row.count, num_blocks

    def _group(self, rows: list[Row], offset: int) -> _Group:
        count, num_blocks = self._group_key(rows[0])
        tables = np.asarray([row.sequence.block_table[:num_blocks] for row in rows])
        positions = np.asarray([[row.start] for row in rows]) + np.arange(count)
        return _Group(
            slice(offset, offset + len(rows) * count),
            to_device(tables.reshape(-1), self._device),
            to_device(positions, self._device),
            num_blocks * self._block_size,
        )

    def _gather(
        self, which: int, cache: torch.Tensor, group: _Group, shape: torch.Size
    ) -> torch.Tensor:
        """The group's keys or values, [rows, kv_heads, num_keys, head_dim], in a workspace."""
        width = self._block_size * cache.shape[1]
        size = group.blocks.numel() * width
        if self._workspaces[which].numel() < size:
            self._workspaces[which] = cache.new_empty(size + size // 2)
        out = self._workspaces[which][:size].view(-1, width)
        torch.index_select(cache.view(-1, width), 0, group.blocks, out=out)
        return out.view(-1, group.num_keys, *shape).transpose(1, 2)


def _attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: torch.Tensor,
    options: AttentionOptions,
) -> torch.Tensor:
    """q [B, H, Q, D], k [B, H, K, D], v [B, H, K, E], mask [B, 1, Q, K] -> [B, H, Q, E]."""
    if options.softcap is None and options.sinks is None:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=options.scaling)
    scores = torch.matmul(q, k.transpose(-1, -2)) * options.scaling
    if options.softcap is not None:
        scores = options.softcap * torch.tanh(scores / options.softcap)
    scores = (scores + mask).float()
    if options.sinks is not None:
        # One more column, which takes its share of the softmax and is then left out.
        per_query = options.sinks.view(k.shape[1], -1, 1)
        per_query = per_query.expand(-1, -1, q.shape[2] // per_query.shape[1])
        sink = per_query.reshape(1, k.shape[1], -1, 1).expand(q.shape[0], -1, -1, 1)
        scores = torch.cat([scores, sink.float()], dim=-1)
        weights = torch.softmax(scores, dim=-1)[..., :-1]
    else:
        weights = torch.softmax(scores, dim=-1)
    return torch.matmul(weights.to(v.dtype), v)


def _lazy_zeros(rows: int, width: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Zeros [rows, width] that take no memory on the CPU before they are written.

    Zeros and not garbage: a masked key has weight 0, and 0 * NaN would be NaN.
    """
    if device.type != "cpu":
        return torch.zeros(rows, width, dtype=dtype, device=device)
    pages = np.zeros(rows * width * dtype.itemsize, dtype=np.uint8)
    return torch.from_numpy(pages).view(dtype).view(rows, width)
