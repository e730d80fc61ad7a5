"""Attention back ends: one module each, chosen by name or by device."""

from __future__ import annotations

import logging

import torch

from tokenloom_engine.attention import varlen
from tokenloom_engine.attention.base import AttentionBackend, LayerSpec
from tokenloom_engine.attention.cpu import CpuAttention, suits
from tokenloom_engine.attention.sdpa import SdpaAttention
from tokenloom_engine.errors import LoadError
from tokenloom_engine.kernels.library import Kernels

logger = logging.getLogger(__name__)

NAMES = ("auto", "cpu", "sdpa", "varlen")
DEFAULT_BLOCK_SIZE = 32


def resolve_attention(
    name: str,
    block_size: int | None,
    dtype: torch.dtype,
    device: torch.device,
    kernels: Kernels | None,
) -> str:
    """The back end that `auto` stands for. `kernels`: those of the CPU, if the model is there.

    Raises ValueError for unknown names, LoadError for one that cannot serve.
    """
    if name not in NAMES:
        raise ValueError(f"`attention` must be one of {', '.join(NAMES)}. Given: {name}")
    if name == "varlen" or (name == "auto" and device.type == "cuda"):
        return _varlen_unless(varlen.refusal(block_size, dtype, device), name)
    if block_size is None:
        block_size = DEFAULT_BLOCK_SIZE
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


def settle_attention(name: str, resolved: str, layers: list[LayerSpec]) -> str:
    """The back end for these layers, once `name` was resolved. Raises LoadError."""
    if resolved != "varlen":
        return resolved
    return _varlen_unless(varlen.layers_refusal(layers), name)


def default_block_size(attention: str) -> int:
    """Tokens in a block, unless somebody says otherwise."""
    return varlen.PAGE if attention == "varlen" else DEFAULT_BLOCK_SIZE


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
    if name == "varlen":
        return varlen.VarlenAttention(layers, num_blocks, block_size, dtype, device)
    assert name == "sdpa"
    return SdpaAttention(layers, num_blocks, block_size, dtype, device)


def _varlen_unless(reason: str | None, name: str) -> str:
    if reason is None:
        return "varlen"
    if name == "varlen":
        raise LoadError(f"`attention` is varlen, which {reason}")
    logger.info("Attention by sdpa, which is slower, for varlen %s", reason)
    return "sdpa"
