"""Prepacked linear layers compute what the layers that they replace compute."""

from __future__ import annotations

import pytest
import torch

from tokenloom_engine.kernels.linear import PrepackedLinear, prepack_linears

ROWS = (1, 2, 3, 7, 16, 33, 100, 257)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("inputs", "outputs"), [(576, 192), (64, 1000), (1536, 576), (33, 5)])
def test_equals_the_product_in_float64(inputs: int, outputs: int, bias: bool) -> None:
    linear = torch.nn.Linear(inputs, outputs, bias=bias, dtype=torch.bfloat16)
    packed = PrepackedLinear(linear)
    for rows in ROWS:
        x = torch.randn(1, rows, inputs).bfloat16()
        with torch.inference_mode():
            found = packed(x)
            exact = torch.nn.Linear.forward(linear.double(), x.double())
            linear.bfloat16()
        assert found.shape == (1, rows, outputs) and found.dtype == torch.bfloat16
        torch.testing.assert_close(found.double(), exact, rtol=0.01, atol=0.02)


def test_a_row_does_not_depend_on_the_others() -> None:
    packed = PrepackedLinear(torch.nn.Linear(576, 320, bias=False, dtype=torch.bfloat16))
    x = torch.randn(max(ROWS), 576).bfloat16()
    with torch.inference_mode():
        whole = packed(x)
        for rows in ROWS:
            assert torch.equal(packed(x[:rows]), whole[:rows])


def test_replaces_bfloat16_layers_alone() -> None:
    network = torch.nn.Sequential(
        torch.nn.Linear(8, 8, dtype=torch.bfloat16),
        torch.nn.Sequential(torch.nn.Linear(8, 8, dtype=torch.bfloat16), torch.nn.ReLU()),
        torch.nn.Linear(8, 8, dtype=torch.float32),
    )
    assert prepack_linears(network) == 2
    kinds = [type(module) for module in network.modules()]
    assert kinds.count(PrepackedLinear) == 2
    assert type(network[2]) is torch.nn.Linear
