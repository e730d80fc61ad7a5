"""Speed of a model's linear layers on this CPU, by a short measurement."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

Clock = Callable[[], float]

READ_BYTES = 64 << 20
"""Weights that the measurement reads, more than most caches hold."""
COMPUTE_BYTES = 8 << 20
MANY_ROWS = 64
PASSES = 20
MOST_SECONDS = 0.05
"""No further pass begins after that."""
COMPARED_ROWS = (1, 8, 32)
MARGIN = 1.1
"""Ratio of two times beyond which one is called slower."""


@dataclass(frozen=True, slots=True)
class LinearProduct:
    """One linear layer as the model computes it."""

    multiply: Callable[[torch.Tensor], object]
    """x [rows, num_inputs] of `dtype`."""
    num_inputs: int
    num_outputs: int
    num_bytes: int
    """Of the weight."""
    dtype: torch.dtype

    @property
    def num_weights(self) -> int:
        """Multiplications for each row."""
        return self.num_inputs * self.num_outputs


@dataclass(frozen=True, slots=True)
class Throughput:
    """Speeds of linear layers, and the sizes of all of them."""

    bytes_per_second: float
    """Of weights that are read to multiply them with one row."""
    operations_per_second: float
    """Of multiplications and additions with many rows."""
    num_bytes: int
    num_weights: int

    def tokens_per_second(self, rows: int) -> float:
        """An upper bound for steps of so many sequences: attention and sampling take no time."""
        reading = self.num_bytes / self.bytes_per_second
        computing = 2 * self.num_weights * rows / self.operations_per_second
        return rows / max(reading, computing)


def measure_throughput(
    products: Sequence[LinearProduct], clock: Clock = time.perf_counter
) -> Throughput:
    """Multiply random rows with the first of `products`, which must not be empty."""
    read, computed = _first(products, READ_BYTES), _first(products, COMPUTE_BYTES)
    read_bytes = sum(product.num_bytes for product in read)
    operations = 2 * MANY_ROWS * sum(product.num_weights for product in computed)
    return Throughput(
        bytes_per_second=read_bytes / _seconds(read, 1, clock),
        operations_per_second=operations / _seconds(computed, MANY_ROWS, clock),
        num_bytes=sum(product.num_bytes for product in products),
        num_weights=sum(product.num_weights for product in products),
    )


def time_ratios(
    products: Sequence[LinearProduct],
    others: Sequence[LinearProduct],
    clock: Clock = time.perf_counter,
) -> dict[int, float]:
    """Return the ratio of the time of `products` to that of `others`, by number of rows."""
    return {
        rows: _seconds(products, rows, clock) / _seconds(others, rows, clock)
        for rows in COMPARED_ROWS
    }


def slower_rows(
    products: Sequence[LinearProduct],
    others: Sequence[LinearProduct],
    clock: Clock = time.perf_counter,
) -> dict[int, float]:
    """Numbers of rows for which `products` take longer than `others`, each with the ratio."""
    ratios = time_ratios(products, others, clock)
    return {rows: ratio for rows, ratio in ratios.items() if ratio > MARGIN}


def compared(products: Sequence[LinearProduct]) -> list[LinearProduct]:
    """The first of `products`, as many as `slower_rows` needs."""
    return _first(products, COMPUTE_BYTES)


def _first(products: Sequence[LinearProduct], num_bytes: int) -> list[LinearProduct]:
    """As many as have so many bytes of weights, at least one."""
    taken, total = [], 0
    for product in products:
        taken.append(product)
        total += product.num_bytes
        if total >= num_bytes:
            break
    return taken


@torch.inference_mode()
def _seconds(products: Sequence[LinearProduct], rows: int, clock: Clock) -> float:
    """The shortest of some passes over all `products`."""
    generator = torch.Generator().manual_seed(0)  # torch's own generator stays as it is
    inputs = {
        (product.num_inputs, product.dtype): torch.randn(
            rows, product.num_inputs, generator=generator
        ).to(product.dtype)
        for product in products
    }
    best, begun = float("inf"), clock()
    for turn in range(1 + PASSES):
        start = clock()
        for product in products:
            product.multiply(inputs[product.num_inputs, product.dtype])
        end = clock()
        if turn > 0 or end - begun > MOST_SECONDS:  # the first one warms up
            best = min(best, end - start)
        if end - begun > MOST_SECONDS:
            break
    return max(best, 1e-9)
