"""From bits to logits: what constraints' bitmasks do to the scores."""

from __future__ import annotations

import logging
from collections.abc import Callable

import numpy as np
import torch

from tokenloom_engine.batch import to_device
from tokenloom_engine.constraints.base import Bitmask

logger = logging.getLogger(__name__)

OCTETS = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
BIAS = np.where(OCTETS == 1, np.float32(0), np.float32(-np.inf))
"""float32 [256, 8]: what the eight bits of each octet add to the scores of eight tokens.

Looking up octets and adding is some forty times faster on a CPU than filling by a mask of booleans.
"""

Fill = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], None]
"""(scores [N, V], int64 [rows], int32 [rows, words]): -inf, in place, where bits are 0."""


class BitmaskFill:
    """Applies bitmasks to scores on one device. Only the bits travel there."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._fused = _fused_fill(device) if device.type == "cuda" else None

    def apply(self, scores: torch.Tensor, rows: list[int], bitmask: Bitmask) -> None:
        """-inf, in place, in these rows of the scores [N, V] for what they are not allowed."""
        places = to_device(np.asarray(rows, dtype=np.int64), self._device)
        if self._fused is not None:
            self._fused(scores, places, to_device(bitmask, self._device))
            return
        bias = bitmask_bias(bitmask, scores.shape[1], self._device)
        if len(rows) == len(scores):
            scores += bias
        else:
            scores.index_add_(0, places, bias)


def bitmask_bias(bitmask: Bitmask, vocab_size: int, device: torch.device) -> torch.Tensor:
    """float32 [rows, vocab_size]: 0 where the bitmask allows a token, -inf where it does not."""
    octets = bitmask.view(np.uint8)
    if device.type == "cpu":
        bias = torch.from_numpy(np.take(BIAS, octets, axis=0))
    else:
        table = to_device(BIAS, device)
        bias = torch.nn.functional.embedding(to_device(octets, device).int(), table)
    return bias.view(len(bitmask), -1)[:, :vocab_size]


def _fused_fill(device: torch.device) -> Fill | None:
    """One kernel instead of several, compiled now; None where that does not work."""
    try:
        from tokenloom_engine.kernels.triton_fill import fill_forbidden

        scores = torch.zeros(1, 32, device=device)
        rows = torch.zeros(1, dtype=torch.int64, device=device)
        fill_forbidden(scores, rows, torch.full((1, 1), 5, dtype=torch.int32, device=device))
        works = scores.isfinite().nonzero()[:, 1].tolist() == [0, 2]
    except Exception as error:  # whatever a compiler or a driver has against it
        logger.info("Bitmasks by torch, for Triton does not work: %s", type(error).__name__)
        return None
    if not works:
        logger.warning("Bitmasks by torch, for Triton's kernel computes something else")
        return None
    return fill_forbidden
