"""The start line on the speed of a CPU, and the warning where int8 does not pay."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from tokenloom_engine.kernels.library import Kernels
from tokenloom_engine.kernels.packing import PackedWeight
from tokenloom_engine.model import Model
from tokenloom_engine.throughput import (
    MANY_ROWS,
    LinearProduct,
    compared,
    measure_throughput,
    slower_rows,
)

logger = logging.getLogger(__name__)

LEAST_COVERED = 0.5
"""Part of a model's parameters that its linear layers must have to tell its speed from theirs."""


def log_speed(
    model: Model, num_parameters: int, kernels: Kernels | None, quantize: str | None
) -> None:
    """Log the level, the arithmetic, the measured speeds and the tokens a second that they allow.

    `num_parameters`: of the whole model. Warns where the plain dtype is faster than int8.
    """
    products = model.products
    if not products:
        return
    speed = measure_throughput(products)
    dtype = str(model.dtype).removeprefix("torch.")
    weights = quantize or dtype
    where = "CPU without kernels"
    arithmetic = f"{dtype} by torch"
    if kernels is not None:
        where = f"CPU level {kernels.level.name}"
        arithmetic = kernels.level.arithmetic(model.dtype, quantize)
        if kernels.level.has_tiles():
            arithmetic += f" {kernels.tiles.describe(arithmetic)}"
    expected = ""
    if speed.num_weights >= LEAST_COVERED * num_parameters:
        one, many = (speed.tokens_per_second(rows) for rows in (1, MANY_ROWS))
        expected = f"; expect up to {one:.0f} tokens/s for 1 sequence, {many:.0f} for {MANY_ROWS}"
    logger.info(
        "%s: %s weights, multiplied in %s; measured %.1f GB/s, %.0f GFLOP/s%s",
        where,
        weights,
        arithmetic,
        speed.bytes_per_second / 1e9,
        speed.operations_per_second / 1e9,
        expected,
    )
    if quantize is not None and kernels is not None:
        _warn_if_slower(compared(products), kernels, dtype)


def _warn_if_slower(products: Sequence[LinearProduct], kernels: Kernels, dtype: str) -> None:
    plain = [
        PackedWeight.filled(p.num_outputs, p.num_inputs, p.dtype).as_product(kernels)
        for p in products
    ]
    slower = slower_rows(products, plain)
    if slower:
        rows = ", ".join(f"{ratio:.1f} times as long for {rows}" for rows, ratio in slower.items())
        logger.warning(
            "--quantize int8 is slower than %s on this CPU: linear layers take %s sequences. "
            "Leave it out unless memory is short",
            dtype,
            rows,
        )
