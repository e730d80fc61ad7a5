"""Sums for log-probabilities are those of float64."""

from __future__ import annotations

import math

import pytest
import torch

from tokenloom_engine.kernels.library import Kernels
from tokenloom_engine.kernels.log_sum_exp import log_sum_exp


@pytest.mark.parametrize("size", [1, 15, 16, 257, 5003, 49152])
@pytest.mark.parametrize("scale", [0.1, 4.0, 60.0])
def test_equals_float64(kernels: Kernels, size: int, scale: float) -> None:
    logits = scale * torch.randn(7, size) + 20 * torch.randn(7, 1)
    rows = [6, 0, 3]
    found = log_sum_exp(kernels, logits, rows)
    torch.testing.assert_close(
        found, logits[rows].double().logsumexp(dim=1).float(), rtol=1e-6, atol=2e-6
    )
    alone = [log_sum_exp(kernels, logits, [row])[0].item() for row in rows]
    assert alone == found.tolist(), "alone as together"


def test_what_is_impossible_counts_for_nothing(kernels: Kernels) -> None:
    logits = torch.full((3, 1000), -torch.inf)
    logits[1, [0, 999]] = 2.0
    logits[2, 500] = torch.nan
    logits[2, 501] = -3.0
    found = log_sum_exp(kernels, logits, [0, 1, 2]).tolist()
    assert found == [-math.inf, pytest.approx(2 + math.log(2)), pytest.approx(-3.0)]
