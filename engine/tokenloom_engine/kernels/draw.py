"""Draws by our own kernel: nothing is sorted, and rows that nothing changes are not copied."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tokenloom_engine.kernels.library import Kernels
from tokenloom_engine.kernels.structs import Draw


@dataclass(frozen=True, slots=True)
class DrawRow:
    """One row to draw from, and how."""

    logits: torch.Tensor
    """float32, contiguous, of `num_tokens` or more."""
    allowed: NDArray[np.int32] | None
    """A bit for each token; None allows all."""
    temperature: float
    """0 takes the best."""
    min_p: float
    top_k: int
    top_p: float
    uniform: float
    """In [0, 1): decides the draw."""


def draw_tokens(kernels: Kernels, rows: Seq[DrawRow], num_tokens: int) -> list[int]:
    """A token id below `num_tokens` from each row; -1 where there is none to draw."""
    masks = [None if row.allowed is None else np.ascontiguousarray(row.allowed) for row in rows]
    assert all(mask is None or 32 * len(mask) >= num_tokens for mask in masks)
    logits = np.array([row.logits.data_ptr() for row in rows], dtype=np.uint64)
    allowed = np.array([0 if mask is None else _address(mask) for mask in masks], dtype=np.uint64)
    temperatures = np.array([row.temperature for row in rows], dtype=np.float32)
    min_ps = np.array([row.min_p for row in rows], dtype=np.float32)
    top_ps = np.array([row.top_p for row in rows], dtype=np.float32)
    top_ks = np.array([row.top_k for row in rows], dtype=np.int32)
    uniforms = np.array([row.uniform for row in rows], dtype=np.float64)
    ids = np.empty(len(rows), dtype=np.int32)
    arrays = (logits, allowed, temperatures, min_ps, top_ps, top_ks, uniforms, ids)
    pointers = (_address(array) for array in arrays)
    kernels.draw(Draw(*pointers, num_tokens, len(rows), kernels.threads))
    found: list[int] = ids.tolist()
    return found


def _address(array: NDArray[Any]) -> int:
    """Where its memory is: `array.ctypes` knows as well, but takes several times as long to say."""
    address: int = array.__array_interface__["data"][0]
    return address
