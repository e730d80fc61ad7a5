"""What stands in for a GPU: torch's operation as its documentation has it, and a tiny engine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer, MistralConfig, MistralForCausalLM

from tokenloom_engine.attention.varlen import PAGE, VarlenAttention
from tokenloom_engine.config import EngineConfig
from tokenloom_engine.engine import Engine
from tokenloom_engine.probe import probe_layers


def tiny_engine(
    folder: Path, model_path: Path, cuda_graphs: tuple[int, ...] | None = None
) -> Engine:
    """Grouped heads and a sliding window, computed by torch alone."""
    torch.manual_seed(1)
    config = MistralConfig(
        vocab_size=49152,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        sliding_window=40,
        max_position_embeddings=256,
        bos_token_id=1,
        eos_token_id=2,
        initializer_range=0.2,
    )
    MistralForCausalLM(config).save_pretrained(folder)
    AutoTokenizer.from_pretrained(model_path).save_pretrained(folder)
    return Engine(
        EngineConfig(
            model_id=str(folder),
            dtype="float32",
            disable_custom_kernels=True,
            block_size=16,
            max_batch_total_tokens=2048,
            max_batch_prefill_tokens=24,
            cuda_graphs=cuda_graphs,
        )
    )


def attend_by_varlen(engine: Engine) -> VarlenAttention:
    """Let an engine attend as on a GPU, from an empty cache on."""
    runner = engine._runner
    backend = VarlenAttention(
        probe_layers(runner.model),
        runner.num_blocks,
        runner.block_size,
        runner.model.dtype,
        runner.model.device,
        varlen_attention,
    )
    runner.backend = backend
    runner.model.bind(backend)
    engine._scheduler.blocks._cached.clear()
    return backend


def varlen_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cu_seq_q: torch.Tensor,
    cu_seq_k: torch.Tensor,
    max_q: int,
    max_k: int,
    *,
    scale: float,
    window_size: tuple[int, int],
    enable_gqa: bool,
    seqused_k: torch.Tensor,
    block_table: torch.Tensor,
    num_splits: int | None = None,
) -> torch.Tensor:
    """What `torch.nn.attention.varlen.varlen_attn` says of its arguments, checked and computed.

    query [T, H, D], key and value [pages, page, G, D]. The queries are a sequence's last ones.
    """
    num_rows = len(seqused_k)
    for tensor in (cu_seq_q, cu_seq_k, seqused_k, block_table):
        assert tensor.dtype == torch.int32
    assert seqused_k.is_contiguous() and block_table.stride(1) == 1
    assert len(cu_seq_q) == len(cu_seq_k) == num_rows + 1 and len(block_table) == num_rows
    assert int(cu_seq_q[-1]) == len(query), "every query is somebody's"
    assert max_q >= int(cu_seq_q.diff().max()) and max_k >= int(seqused_k.max())
    assert enable_gqa == (query.shape[1] != key.shape[2])
    output = torch.empty_like(query)
    for row in range(num_rows):
        first, last = int(cu_seq_q[row]), int(cu_seq_q[row + 1])
        num_keys = int(seqused_k[row])
        k, v = (cache[block_table[row].long()].flatten(0, 1)[:num_keys] for cache in (key, value))
        group = query.shape[1] // key.shape[2]
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        scores = torch.einsum("qhd,khd->hqk", query[first:last], k) * scale
        place = torch.arange(last - first)[:, None] + num_keys - (last - first)
        distance = place - torch.arange(num_keys)
        left, right = window_size
        hidden = distance < -right if right >= 0 else torch.zeros_like(distance, dtype=torch.bool)
        if left >= 0:
            hidden |= distance > left
        weights = scores.masked_fill(hidden, -torch.inf).softmax(dim=-1)
        output[first:last] = torch.einsum("hqk,khd->qhd", weights, v)
    return output


@dataclass
class FlashAttention2:
    """The same as FlashAttention 2 of a release of torch does it on a GPU, faults included.

    By its C++ (`mha_varlen_fwd` and `num_splits_heuristic`): where a paged call splits keys, the
    parts are combined over the first row, and what the others get is whatever was in memory.
    """

    release: tuple[int, int]
    num_processors: int = 132
    num_split: int = 0
    """Calls that were split."""

    def __call__(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        cu_seq_q: torch.Tensor,
        cu_seq_k: torch.Tensor,
        max_q: int,
        max_k: int,
        *,
        window_size: tuple[int, int],
        num_splits: int | None = None,
        **options: Any,  # noqa: ANN401 - those of `varlen_attention`
    ) -> torch.Tensor:
        assert key.shape[1] % PAGE == 0 and query.shape[2] % 8 == 0
        if num_splits is not None and self.release < (2, 13):
            raise RuntimeError("num_splits requires FA3")
        output = varlen_attention(
            query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, window_size=window_size, **options
        )
        heads, kv_heads = query.shape[1], key.shape[2]
        is_packed = max_q == 1 and heads > kv_heads and window_size == (-1, -1)
        if self.release < (2, 13) or num_splits == 1:
            return output
        rows, queries = len(cu_seq_q) - 1, heads // kv_heads if is_packed else max_q
        num_tiles = rows * (kv_heads if is_packed else heads) * -(-queries // 64)
        key_tile = 256 if query.shape[2] <= 64 else 128 if query.shape[2] <= 128 else 64
        if max_k > key_tile and num_tiles < 0.8 * 2 * self.num_processors:
            self.num_split += 1
            if not is_packed:  # the stride from row to row of the output stays 0
                output[int(cu_seq_q[1]) :] = torch.nan
        return output
