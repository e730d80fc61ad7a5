"""The C++ kernels as Python sees them: a method for each function of csrc/kernels.h.

A call through ctypes releases Python's lock while it runs.
"""

from __future__ import annotations

import copy
import ctypes
from pathlib import Path

import torch

from tokenloom_engine.kernels.amx import TileRows, products_are_right
from tokenloom_engine.kernels.build import build_kernels, find_compiler
from tokenloom_engine.kernels.levels import LEVELS, Level, best_level
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


class Kernels:
    """The loaded library. Every method computes in place what its struct describes."""

    def __init__(self, path: Path, level: Level, threads: int) -> None:
        """`threads`: how many a function uses."""
        self.threads = threads
        self.level = level
        self.tiles = TileRows()
        self._library = ctypes.CDLL(str(path))

    @classmethod
    def load(cls, threads: int) -> Kernels | None:
        """Build the library if it is not there. None if it cannot be built.

        Where AMX does not work, the best level without it is loaded.
        """
        level = best_level()
        path = build_kernels(level)
        if path is None and find_compiler() is None:
            return None
        if level.has_tiles and (path is None or not products_are_right(path)):
            level = best_level(levels=[level for level in LEVELS if not level.has_tiles])
            path = build_kernels(level)
        return None if path is None else cls(path, level, threads)

    def permit_tiles(self) -> bool:
        """Ask the system for AMX. False if this process cannot have it."""
        return bool(self._library.tokenloom_permit_tiles())

    def with_tiles(self, tiles: TileRows) -> Kernels:
        """The same library with these products by AMX; `permit_tiles` must have returned True."""
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
