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
    """A bit for each token, in as many words as those of the other rows; None allows all."""
    temperature: float
    """0 takes the best."""
    min_p: float
    top_k: int
    top_p: float
    uniform: float
    """In [0, 1): decides the draw."""


def draw_tokens(kernels: Kernels, rows: Seq[DrawRow], num_tokens: int) -> list[int]:
    """A token id below `num_tokens` from each row; -1 where there is none to draw."""
    limited = [index for index, row in enumerate(rows) if row.allowed is not None]
    # One copy of all of them takes less time than to ask each where it is.
    masks = np.array([rows[index].allowed for index in limited], dtype=np.int32)
    assert not limited or 32 * masks.shape[1] >= num_tokens
    allowed = np.zeros(len(rows), dtype=np.uint64)
    allowed[limited] = _address(masks) + masks.strides[0] * np.arange(len(limited))
    logits = np.array([row.logits.data_ptr() for row in rows], dtype=np.uint64)
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
