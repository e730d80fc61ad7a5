"""Attention back ends: one module each, chosen by name or by device."""

from __future__ import annotations

import torch

from tokenloom_engine.attention.base import AttentionBackend, LayerSpec


def resolve_attention(name: str, device: torch.device) -> str:
    """The back end that `auto` stands for on this device. Raises ValueError for unknown names."""
    if name == "auto":
        return "sdpa"
    if name != "sdpa":
        raise ValueError(f"`attention` must be auto or sdpa. Given: {name}")
    return name


def create_attention(
    name: str,
    layers: list[LayerSpec],
    num_blocks: int,
    block_size: int,
    dtype: torch.dtype,
    device: torch.device,
) -> AttentionBackend:
    """Allocate a KV cache with the back end of that name over it."""
    from tokenloom_engine.attention.sdpa import SdpaAttention

    assert name == "sdpa"
    return SdpaAttention(layers, num_blocks, block_size, dtype, device)
