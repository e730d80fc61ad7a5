"""Choice between AMX and vectors for matrix products, by a short measurement."""

from __future__ import annotations

import logging
import time

import torch

from tokenloom_engine.kernels.amx import TileRows
from tokenloom_engine.kernels.library import Kernels
from tokenloom_engine.kernels.linear import INPUTS_TOGETHER
from tokenloom_engine.kernels.packing import PackedWeight
from tokenloom_engine.throughput import COMPARED_ROWS, Clock, slower_rows

logger = logging.getLogger(__name__)

OUTPUTS, INPUTS = 4096, 2048
"""Of the measured products: several MB of weights, more than the cache of a core holds."""


def choose_tiles(kernels: Kernels, clock: Clock = time.perf_counter) -> Kernels:
    """The kernels with the faster way for each arithmetic; the same ones where there is no AMX."""
    if not kernels.level.has_tiles:
        return kernels
    if not kernels.permit_tiles():
        logger.warning("The system does not permit AMX: matrix products by AVX-512 (slower)")
        return kernels
    whole = torch.full((OUTPUTS, INPUTS), 0.01, dtype=torch.bfloat16)
    floats = PackedWeight.pack(whole, None)
    bytes_ = PackedWeight.quantize(whole, None, INPUTS_TOGETHER)
    vectors, tiles = kernels.with_tiles(TileRows()), kernels.with_tiles(TileRows(1, 1))

    def slower(weight: PackedWeight, some: Kernels, others: Kernels) -> set[int]:
        products = [weight.as_product(some)], [weight.as_product(others)]
        return set(slower_rows(*products, clock))

    # One way for all numbers of rows: it must gain somewhere and lose nowhere.
    gains = slower(floats, vectors, tiles)
    bfloat16 = int(bool(gains) and not slower(floats, tiles, vectors))
    return kernels.with_tiles(TileRows(bfloat16, _least(slower(bytes_, vectors, tiles))))


def _least(faster: set[int]) -> int:
    """The least of the compared numbers of rows from which on all are `faster`; 0 if none is."""
    least = 0
    for rows in sorted(COMPARED_ROWS, reverse=True):
        if rows not in faster:
            break
        least = rows
    return least
