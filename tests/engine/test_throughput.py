"""Speeds of linear layers, measured with a clock that only the layers advance."""

from __future__ import annotations

import pytest
import torch

from tokenloom_engine.throughput import (
    MANY_ROWS,
    LinearProduct,
    compared,
    measure_throughput,
    slower_rows,
)


class Machine:
    """A machine that takes a known time for each product."""

    def __init__(self, bytes_per_second: float, operations_per_second: float) -> None:
        self.bytes_per_second = bytes_per_second
        self.operations_per_second = operations_per_second
        self.now = 0.0

    def clock(self) -> float:
        return self.now

    def product(self, inputs: int, outputs: int, itemsize: int) -> LinearProduct:
        num_bytes = inputs * outputs * itemsize

        def multiply(x: torch.Tensor) -> None:
            operations = 2 * inputs * outputs * len(x)
            self.now += max(
                num_bytes / self.bytes_per_second, operations / self.operations_per_second
            )

        return LinearProduct(multiply, inputs, outputs, num_bytes, torch.float32)


def test_finds_the_speeds_of_a_machine_and_what_they_allow() -> None:
    machine = Machine(bytes_per_second=40e9, operations_per_second=800e9)
    products = [machine.product(2048, 2048, 2) for _ in range(100)]
    speed = measure_throughput(products, machine.clock)
    assert speed.bytes_per_second == pytest.approx(40e9)
    assert speed.operations_per_second == pytest.approx(800e9)
    # 839 MB of weights: read 48 times a second, or multiplied with 954 rows.
    assert speed.tokens_per_second(1) == pytest.approx(40e9 / (100 * 2048 * 2048 * 2))
    assert speed.tokens_per_second(MANY_ROWS) == pytest.approx(800e9 / (100 * 2048 * 2048 * 2))
    # Half a second and not 20: the first weights tell the rest.
    assert machine.now < 0.5


def test_says_where_products_are_slower_than_others() -> None:
    machine = Machine(bytes_per_second=40e9, operations_per_second=400e9)
    plain = compared([machine.product(1024, 1024, 4) for _ in range(40)])
    quantized = [machine.product(1024, 1024, 1) for _ in plain]
    assert slower_rows(quantized, plain, machine.clock) == {}
    slow = Machine(bytes_per_second=40e9, operations_per_second=100e9)
    slow_products = [slow.product(1024, 1024, 1) for _ in plain]
    ratios = slower_rows(slow_products, plain, lambda: machine.now + slow.now)
    assert list(ratios) == [8, 32]
    assert ratios[32] == pytest.approx(4)
