"""Packed matrix products, of each storage and in bytes."""

from __future__ import annotations

import pytest
import torch

from tokenloom_engine.kernels.library import Kernels
from tokenloom_engine.kernels.linear import PackedLinear, pack_linears
from tokenloom_engine.kernels.packing import PackedWeight, is_suited

ROWS = (1, 2, 7, 12, 13, 33)
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
ROUNDING = {torch.float32: 1e-6, torch.bfloat16: 2**-8, torch.float16: 2**-11}
"""Relative, of one rounding of a result."""


def _exact(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    product = x.double() @ weight.double().T
    return product if bias is None else product + bias.double()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("inputs", "outputs"), [(576, 192), (64, 1000), (34, 5)])
def test_equals_the_product_in_float64(
    kernels: Kernels, dtype: torch.dtype, inputs: int, outputs: int
) -> None:
    weight = torch.randn(outputs, inputs, dtype=dtype) / inputs**0.5
    for bias in (None, torch.randn(outputs, dtype=dtype)):
        packed = PackedWeight.pack(weight, bias)
        for rows in ROWS:
            x = torch.randn(rows, inputs, dtype=dtype)
            found, exact = packed.multiply(kernels, x), _exact(x, weight, bias)
            assert found.dtype == dtype
            torch.testing.assert_close(
                found.double(), exact, rtol=ROUNDING[dtype], atol=2 * ROUNDING[torch.float32] * 10
            )
            as_float = packed.multiply(kernels, x, torch.float32)
            assert as_float.dtype == torch.float32
            torch.testing.assert_close(as_float.double(), exact, rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("most_inputs", [None, 576, 100])
def test_a_row_does_not_depend_on_the_others(
    kernels: Kernels, dtype: torch.dtype, most_inputs: int | None
) -> None:
    weight = torch.randn(320, 576, dtype=dtype)
    packed = PackedWeight.pack(weight, None)
    if most_inputs is not None:
        packed = PackedWeight.quantize(weight, None, most_inputs)
    x = torch.randn(max(ROWS), 576, dtype=dtype)
    whole = packed.multiply(kernels, x)
    for rows in ROWS:
        assert torch.equal(packed.multiply(kernels, x[:rows]), whole[:rows])
        assert torch.equal(packed.multiply(kernels, x[-rows:]), whole[-rows:])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("inputs", "outputs", "most_inputs", "group"),
    [(576, 192, None, 576), (64, 1000, 100, 64), (48, 5, 32, 16), (576, 96, 100, 96)],
)
def test_bytes_are_the_product_of_what_was_rounded_to_bytes(
    kernels: Kernels,
    dtype: torch.dtype,
    inputs: int,
    outputs: int,
    most_inputs: int | None,
    group: int,
) -> None:
    weight = torch.randn(outputs, inputs, dtype=dtype) / inputs**0.5
    for bias in (None, torch.randn(outputs, dtype=dtype)):
        packed = PackedWeight.quantize(weight, bias, most_inputs)
        assert packed.group == group
        for rows in ROWS:
            x = torch.randn(rows, inputs, dtype=dtype)
            exact = _exact(_in_bytes(x, group), _in_bytes(weight, inputs), bias)
            found = packed.multiply(kernels, x).double()
            # A number in the middle of two bytes may go to either.
            torch.testing.assert_close(found, exact, rtol=0.01, atol=0.04)
            torch.testing.assert_close(found, _exact(x, weight, bias), rtol=0.05, atol=0.1)
            as_float = packed.multiply(kernels, x, torch.float32)
            assert torch.equal(as_float.to(dtype).double(), found)


def test_a_large_input_costs_only_its_own_group_accuracy(kernels: Kernels) -> None:
    weight = torch.randn(64, 576) / 24
    x = torch.randn(7, 576)
    x[:, 5] = 1000
    exact = _exact(x, weight, None)
    whole, grouped = (
        (PackedWeight.quantize(weight, None, most).multiply(kernels, x) - exact).norm()
        for most in (576, 64)
    )
    assert grouped < whole / 2


def _in_bytes(x: torch.Tensor, group: int) -> torch.Tensor:
    whole = x.double().view(len(x), -1, group)
    scale = whole.abs().amax(dim=2, keepdim=True) / 127
    return ((whole / scale).round() * scale).view(x.shape)


def test_what_is_not_a_number_stays_in_its_row(kernels: Kernels) -> None:
    for dtype in DTYPES:
        packed = PackedWeight.pack(torch.randn(64, 32, dtype=dtype), None)
        x = torch.randn(5, 32, dtype=dtype)
        clean = packed.multiply(kernels, x)
        x[2] = torch.nan
        found = packed.multiply(kernels, x)
        assert found[2].isnan().all()
        assert torch.equal(found[[0, 1, 3, 4]], clean[[0, 1, 3, 4]])


def test_replaces_the_layers_that_it_can_compute(kernels: Kernels) -> None:
    network = torch.nn.Sequential(
        torch.nn.Linear(8, 8, dtype=torch.bfloat16),
        torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU()),
        torch.nn.Linear(8, 8, dtype=torch.float64),
        torch.nn.Linear(7, 8, dtype=torch.bfloat16),
    )
    assert pack_linears(network, kernels) == 2
    kinds = [type(module) for module in network.modules()]
    assert kinds.count(PackedLinear) == 2 and kinds.count(torch.nn.Linear) == 2
    assert not is_suited(torch.empty(8, 7, dtype=torch.bfloat16))
