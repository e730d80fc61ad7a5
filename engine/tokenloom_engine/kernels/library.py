"""The C++ kernels as Python sees them: a method for each function of csrc/kernels.h.

A call through ctypes releases Python's lock while it runs.
"""

from __future__ import annotations

import copy
import ctypes
from dataclasses import dataclass
from pathlib import Path

import torch

from tokenloom_engine.kernels.build import build_kernels
from tokenloom_engine.kernels.levels import Level, best_level
from tokenloom_engine.kernels.structs import (
    Attention,
    Decoder,
    Draw,
    Forward,
    Gemm,
    Int8Gemm,
    LogSumExp,
    RmsNorm,
    Rotary,
    SiluMultiply,
    Store,
)

STORAGE = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
"""The dtypes that the kernels compute with, and their codes."""
LANES = 16
"""Widths of rows that are normed, rotated or gated must be multiples of it."""


@dataclass(frozen=True, slots=True)
class TileRows:
    """Least numbers of rows whose products are by AMX; 0: none are."""

    bfloat16: int = 0
    """0 or 1: AMX rounds differently from vectors, so a row's bits would depend on the others."""
    int8: int = 0
    """Any: both ways have the same bits."""

    def describe(self, arithmetic: str) -> str:
        """The way of products in this arithmetic, for the log."""
        least = {"bfloat16": self.bfloat16, "int8": self.int8}.get(arithmetic, 0)
        if least == 0:
            return "without AMX"
        return "by AMX" if least == 1 else f"by AMX from {least} rows on"


class Kernels:
    """The loaded library. Every method computes in place what its struct describes."""

    def __init__(self, path: Path, level: Level, threads: int) -> None:
        """`threads`: how many a function uses."""
        self.threads = threads
        self.level = level
        self.path = path
        self.tiles = TileRows()
        self._library = ctypes.CDLL(str(path))

    @classmethod
    def load(cls, threads: int) -> Kernels | None:
        """Build the library if it is not there. None if it cannot be built."""
        level = best_level()
        path = build_kernels(level)
        return None if path is None else cls(path, level, threads)

    def permit_tiles(self) -> bool:
        """Ask the system for AMX. False if this process may not use it."""
        return bool(self._library.tokenloom_permit_tiles())

    def with_tiles(self, tiles: TileRows) -> Kernels:
        """Return the same library with these products by AMX, which must be permitted."""
        other = copy.copy(self)
        other.tiles = tiles
        return other

    def gemm(self, args: Gemm) -> None:
        """Matrix product with a packed weight."""
        self._library.tokenloom_gemm(ctypes.byref(args))

    def int8_gemm(self, args: Int8Gemm) -> None:
        """Matrix product with a packed weight of bytes."""
        self._library.tokenloom_int8_gemm(ctypes.byref(args))

    def rms_norm(self, args: RmsNorm) -> None:
        """Add to the residual, and norm it."""
        self._library.tokenloom_rms_norm(ctypes.byref(args))

    def silu_multiply(self, args: SiluMultiply) -> None:
        """The gated activation."""
        self._library.tokenloom_silu_multiply(ctypes.byref(args))

    def rotary(self, args: Rotary) -> None:
        """Rotary embedding."""
        self._library.tokenloom_rotary(ctypes.byref(args))

    def store(self, args: Store) -> None:
        """Put keys and values into the paged cache."""
        self._library.tokenloom_store(ctypes.byref(args))

    def attention(self, args: Attention) -> None:
        """Paged attention."""
        self._library.tokenloom_attention(ctypes.byref(args))

    def forward(self, decoder: Decoder, step: Forward) -> None:
        """All layers of a decoder."""
        self._library.tokenloom_forward(ctypes.byref(decoder), ctypes.byref(step))

    def draw(self, args: Draw) -> None:
        """A token from each row of logits."""
        self._library.tokenloom_draw(ctypes.byref(args))

    def log_sum_exp(self, args: LogSumExp) -> None:
        """What log-probabilities are less than logits."""
        self._library.tokenloom_log_sum_exp(ctypes.byref(args))
