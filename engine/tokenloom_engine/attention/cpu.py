"""Attention by our own kernel: decode rows and chunks of prompts over the paged cache at once."""

from __future__ import annotations

from itertools import chain

import numpy as np
import torch

from tokenloom_engine.attention.base import AttentionOptions, LayerSpec
from tokenloom_engine.batch import Batch
from tokenloom_engine.kernels.library import LANES, STORAGE, Kernels
from tokenloom_engine.kernels.structs import Attention, Cache, Store

BLOCK_SIZES = (16, 32, 64, 128, 256, 512)


class CpuAttention:
    """See AttentionBackend. The layout of the blocks stands in kernels/csrc/cache.h."""

    def __init__(
        self,
        layers: list[LayerSpec],
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        kernels: Kernels,
    ) -> None:
        """`block_size` and `dtype` must be `suits`."""
        assert suits(block_size, dtype)
        self._kernels = kernels
        self._storage = STORAGE[dtype]
        self._memory: list[torch.Tensor] = []
        self.caches = {
            layer.index: self._allocate(layer, num_blocks, block_size, dtype) for layer in layers
        }
        """By layer: the struct that the kernels take."""
        self.slots = torch.empty(0, dtype=torch.int64)
        self.tables = torch.empty(0, dtype=torch.int32)
        """[rows, most blocks of a row]"""
        self.starts = torch.empty(0, dtype=torch.int32)
        self.lengths = torch.empty(0, dtype=torch.int32)

    def prepare(self, batch: Batch) -> None:
        """See AttentionBackend."""
        block_size = self._block_size
        rows = batch.rows
        self.slots = batch.slots
        starts = np.zeros(len(rows) + 1, dtype=np.int32)
        np.cumsum([row.count for row in rows], out=starts[1:])
        self.starts = torch.from_numpy(starts)
        self.lengths = torch.tensor([row.end for row in rows], dtype=torch.int32)
        counts = [-(-row.end // block_size) for row in rows]
        blocks = [row.sequence.block_table[:count] for row, count in zip(rows, counts, strict=True)]
        tables = np.zeros((len(rows), max(counts)), dtype=np.int32)
        is_used = np.arange(max(counts)) < np.asarray(counts)[:, np.newaxis]
        tables[is_used] = list(chain.from_iterable(blocks))
        self.tables = torch.from_numpy(tables)

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        options: AttentionOptions,
    ) -> torch.Tensor:
        """See AttentionBackend."""
        cache = self.caches[layer]
        key, value, query = key.contiguous(), value.contiguous(), query.contiguous()
        self._kernels.store(
            Store(
                cache,
                key.data_ptr(),
                value.data_ptr(),
                key.stride(0),
                value.stride(0),
                self.slots.data_ptr(),
                len(self.slots),
                self._kernels.threads,
            )
        )
        result = query.new_zeros(query.shape[0], query.shape[1], value.shape[-1])
        sinks = None if options.sinks is None else options.sinks.float().contiguous()
        self._kernels.attention(
            Attention(
                cache,
                query.data_ptr(),
                result.data_ptr(),
                query.stride(0),
                result.stride(0),
                self.tables.data_ptr(),
                self.tables.stride(0),
                self.starts.data_ptr(),
                self.lengths.data_ptr(),
                len(self.lengths),
                query.shape[1],
                options.scaling,
                options.softcap or 0.0,
                options.sliding_window or 0,
                None if sinks is None else sinks.data_ptr(),
                self._kernels.threads,
            )
        )
        return result

    @property
    def _block_size(self) -> int:
        size: int = next(iter(self.caches.values())).block_size
        return size

    def _allocate(
        self, layer: LayerSpec, num_blocks: int, block_size: int, dtype: torch.dtype
    ) -> Cache:
        per_word = 4 // dtype.itemsize
        key_dim = layer.key_dim + -layer.key_dim % per_word
        value_dim = layer.value_dim + -layer.value_dim % LANES
        places = num_blocks * block_size * layer.num_kv_heads
        keys, values = _lazy_zeros(places * key_dim, dtype), _lazy_zeros(places * value_dim, dtype)
        self._memory += keys, values
        return Cache(
            keys.data_ptr(),
            values.data_ptr(),
            layer.num_kv_heads,
            layer.key_dim,
            layer.value_dim,
            block_size,
            self._storage,
        )


def suits(block_size: int, dtype: torch.dtype) -> bool:
    """Whether the kernel can work with such blocks."""
    return block_size in BLOCK_SIZES and dtype in STORAGE


def _lazy_zeros(count: int, dtype: torch.dtype) -> torch.Tensor:
    """Zeros that take no memory before they are written."""
    return torch.from_numpy(np.zeros(count * dtype.itemsize, dtype=np.uint8)).view(dtype)
