"""Attention back ends: one module each, chosen by name or by device."""

from __future__ import annotations

import torch

from tokenloom_engine.attention.base import AttentionBackend, LayerSpec
from tokenloom_engine.attention.cpu import CpuAttention, suits
from tokenloom_engine.attention.sdpa import SdpaAttention
from tokenloom_engine.errors import LoadError
from tokenloom_engine.kernels.library import Kernels

NAMES = ("auto", "cpu", "sdpa")


def resolve_attention(
    name: str, block_size: int, dtype: torch.dtype, kernels: Kernels | None
) -> str:
    """The back end that `auto` stands for. `kernels`: those of the CPU, if the model is there.

    Raises ValueError for unknown names, LoadError for one that cannot serve.
    """
    if name not in NAMES:
        raise ValueError(f"`attention` must be one of {', '.join(NAMES)}. Given: {name}")
    if name == "auto":
        return "cpu" if kernels is not None and suits(block_size, dtype) else "sdpa"
    if name == "cpu" and kernels is None:
        raise LoadError("`attention` is cpu, which needs the CPU kernels, and there are none")
    if name == "cpu" and not suits(block_size, dtype):
        raise LoadError(
            f"`attention` is cpu, which needs a `block_size` of 16, 32, 64, 128, 256 or 512. "
            f"Given: {block_size}"
        )
    return name


def create_attention(
    name: str,
    layers: list[LayerSpec],
    num_blocks: int,
    block_size: int,
    dtype: torch.dtype,
    device: torch.device,
    kernels: Kernels | None,
) -> AttentionBackend:
    """Allocate a KV cache with the back end of that name over it."""
    if name == "cpu":
        assert kernels is not None
        return CpuAttention(layers, num_blocks, block_size, dtype, kernels)
    assert name == "sdpa"
    return SdpaAttention(layers, num_blocks, block_size, dtype, device)
