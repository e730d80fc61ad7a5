"""Choice between AMX and vectors for matrix products, by a check and a short measurement."""

from __future__ import annotations

import logging
import subprocess
import sys
import time
from pathlib import Path

import torch

from tokenloom_engine.child_environment import child_environment
from tokenloom_engine.kernels.library import Kernels, TileRows
from tokenloom_engine.kernels.linear import INPUTS_TOGETHER
from tokenloom_engine.kernels.packing import PackedWeight
from tokenloom_engine.throughput import MARGIN, Clock, time_ratios

logger = logging.getLogger(__name__)

CHECK = "import ctypes, sys; sys.exit(ctypes.CDLL(sys.argv[1]).tokenloom_check_tiles())"
CHECK_SECONDS = 60
FAULTS = {1: "a product differs", 2: "the system does not permit it"}
"""Results of the check but 0."""
OUTPUTS, INPUTS = 4096, 2048
"""Shape of the measured products: their weights exceed the cache of a core."""


def choose_tiles(kernels: Kernels, clock: Clock = time.perf_counter) -> Kernels:
    """The kernels with the faster way for each arithmetic; the same ones where there is no AMX."""
    if not kernels.level.has_tiles():
        return kernels
    fault = _fault_of_tiles(kernels.path)
    if fault is None and not kernels.permit_tiles():
        fault = FAULTS[2]
    if fault is not None:
        logger.warning("AMX does not work (%s): matrix products by AVX-512 (slower)", fault)
        return kernels
    whole = torch.full((OUTPUTS, INPUTS), 0.01, dtype=torch.bfloat16)
    tiles = kernels.with_tiles(TileRows(1, 1))

    def gains(weight: PackedWeight) -> dict[int, float]:
        """Return the ratio of the time of vectors to that of AMX, by number of rows."""
        return time_ratios([weight.as_product(kernels)], [weight.as_product(tiles)], clock)

    bfloat16 = gains(PackedWeight.pack(whole, None)).values()
    int8 = gains(PackedWeight.quantize(whole, None, INPUTS_TOGETHER))
    # In bfloat16 one way serves all numbers of rows: it must gain somewhere and lose nowhere.
    is_faster = max(bfloat16) > MARGIN and min(bfloat16) > 1 / MARGIN
    return kernels.with_tiles(TileRows(int(is_faster), _least(int8)))


def _least(gains: dict[int, float]) -> int:
    """The least number of rows from which on all gain; 0 if none does."""
    least = 0
    for rows in sorted(gains, reverse=True):
        if gains[rows] <= MARGIN:
            break
        least = rows
    return least


def _fault_of_tiles(library: Path) -> str | None:
    """Reason not to use AMX, found in a process of its own, which may crash."""
    command = [sys.executable, "-I", "-c", CHECK, str(library)]
    try:
        status = subprocess.run(
            command,
            capture_output=True,
            check=False,
            env=child_environment(),
            timeout=CHECK_SECONDS,
        ).returncode
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)
    return FAULTS.get(status, f"the check exits with {status}") if status else None
