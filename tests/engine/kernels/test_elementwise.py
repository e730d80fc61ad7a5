"""Norms, rotary embedding and the gated activation compute what transformers' modules do."""

from __future__ import annotations

import pytest
import torch
from transformers.models.llama.modeling_llama import LlamaRMSNorm, apply_rotary_pos_emb

from tokenloom_engine.kernels.library import STORAGE, Kernels
from tokenloom_engine.kernels.norm import replace_norms
from tokenloom_engine.kernels.structs import RmsNorm, Rotary, SiluMultiply

ROWS = (1, 3, 40)
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 2**-7, torch.float16: 2**-10}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rms_norm_adds_and_norms(kernels: Kernels, dtype: torch.dtype) -> None:
    norm = LlamaRMSNorm(576, eps=1e-5).to(dtype)
    norm.weight.data = torch.randn(576, dtype=dtype)
    for rows in ROWS:
        residual, delta = torch.randn(2, rows, 576, dtype=dtype)
        summed = residual + delta
        with torch.inference_mode():
            expected = norm(summed)
        result = torch.empty_like(residual)
        kernels.rms_norm(
            RmsNorm(
                residual.data_ptr(), delta.data_ptr(), norm.weight.data_ptr(), result.data_ptr(),
                rows, 576, 1e-5, STORAGE[dtype], 2,
            )
        )  # fmt: skip
        assert torch.equal(residual, summed)
        torch.testing.assert_close(result, expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


def test_a_norm_in_a_network_is_replaced(kernels: Kernels) -> None:
    network = torch.nn.Sequential(LlamaRMSNorm(64), LlamaRMSNorm(40), torch.nn.LayerNorm(64))
    x = torch.randn(2, 5, 64)
    with torch.inference_mode():
        expected = network[0](x)
        assert replace_norms(network, kernels) == 1  # 40 is no multiple of 16
        torch.testing.assert_close(network[0](x), expected)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_silu_gates(kernels: Kernels, dtype: torch.dtype) -> None:
    for rows in ROWS:
        gate_up = torch.randn(rows, 2 * 96, dtype=dtype) * 20
        gate, up = gate_up[:, :96], gate_up[:, 96:]
        result = torch.empty(rows, 96, dtype=dtype)
        kernels.silu_multiply(
            SiluMultiply(gate_up.data_ptr(), result.data_ptr(), rows, 96, STORAGE[dtype], 2)
        )
        expected = torch.nn.functional.silu(gate.double()) * up.double()
        tolerance = 2 * TOLERANCE[dtype]
        torch.testing.assert_close(result.double(), expected, rtol=tolerance, atol=2e-5)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("with_norm", [False, True])
def test_rotates_as_llama_does(kernels: Kernels, dtype: torch.dtype, with_norm: bool) -> None:
    heads, dim, stride = 3, 64, 300
    norm = LlamaRMSNorm(dim, eps=1e-6).to(dtype)
    norm.weight.data = torch.randn(dim, dtype=dtype)
    for rows in ROWS:
        memory = torch.randn(rows, stride, dtype=dtype)
        rest = memory[:, heads * dim :].clone()
        angles = torch.rand(100, dim // 2) * 100
        positions = torch.randperm(100)[:rows]
        cosines, sines = angles.cos().to(dtype), angles.sin().to(dtype)
        whole_cosines, whole_sines = (torch.cat([x, x], dim=1)[positions] for x in (cosines, sines))
        x = memory[:, : heads * dim].view(rows, heads, dim)
        with torch.inference_mode():
            x = norm(x) if with_norm else x.clone()
            expected, _ = apply_rotary_pos_emb(x, x, whole_cosines, whole_sines)
        c, s = cosines.float(), sines.float()
        kernels.rotary(
            Rotary(
                memory.data_ptr(), stride, norm.weight.data_ptr() if with_norm else None,
                c.data_ptr(), s.data_ptr(), positions.data_ptr(), rows, heads, dim, 1e-6,
                STORAGE[dtype], 2,
            )
        )  # fmt: skip
        found = memory[:, : heads * dim].view(rows, heads, dim)
        tolerance = 4 * TOLERANCE[dtype]
        torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)
        assert torch.equal(memory[:, heads * dim :], rest)
