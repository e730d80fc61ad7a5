"""Draws by the kernel are those of the definition, for each combination of parameters."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from tokenloom_engine.kernels.draw import DrawRow, draw_tokens
from tokenloom_engine.kernels.library import Kernels

V = 5003
"""More than one span, and no multiple of anything."""


def _expected(row: DrawRow, weights: NDArray[np.float64]) -> tuple[int, float]:
    """The token, and how far the uniform number is from one that picks another."""
    weights = weights.copy()
    weights[weights < row.min_p * weights.max()] = 0
    if row.top_k:
        weights[weights < np.sort(weights)[-row.top_k]] = 0
    if row.top_p < 1:
        order = np.argsort(-weights, kind="stable")
        before = np.cumsum(weights[order]) - weights[order]
        last = order[before < row.top_p * weights.sum()][-1]
        weights[weights < weights[last]] = 0
    cdf = np.cumsum(weights) / weights.sum()
    return int(np.searchsorted(cdf, row.uniform, side="right")), float(
        np.abs(cdf - row.uniform).min()
    )


@pytest.mark.parametrize("scale", [0.3, 3.0], ids=["flat", "peaked"])
@pytest.mark.parametrize("masked", [False, True])
def test_equals_the_definition(kernels: Kernels, scale: float, masked: bool) -> None:
    generator = np.random.default_rng(7)
    rows, expected = [], []
    for temperature, min_p, top_k, top_p in itertools.product(
        (0.0, 0.7, 1.5), (0.0, 0.05), (0, 1, 40, 3000), (1.0, 0.95, 0.3)
    ):
        logits = generator.standard_normal(V).astype(np.float32) * np.float32(scale)
        allowed = generator.integers(0, 2**32, -(-V // 32), dtype=np.uint32).view(np.int32)
        row = DrawRow(
            torch.from_numpy(logits),
            allowed if masked else None,
            temperature,
            min_p,
            top_k,
            top_p,
            generator.random(),
        )
        bits = np.unpackbits(allowed.view(np.uint8), bitorder="little")[:V].astype(bool)
        scores = np.where(bits | (not masked), logits.astype(np.float64), -np.inf)
        if temperature == 0:
            expected.append((int(scores.argmax()), 1.0))
        else:
            weights = np.exp((scores - scores.max()) / temperature)
            expected.append(_expected(row, weights))
        rows.append(row)
    found = draw_tokens(kernels, rows, V)
    differing = 0
    for id, (wanted, distance) in zip(found, expected, strict=True):
        if id != wanted:  # the number, or the edge of a nucleus, lay between two float32
            differing += 1
            assert distance < 1e-3
    assert differing <= 2
    assert [draw_tokens(kernels, [row], V)[0] for row in rows] == found, "alone as together"


def test_says_where_there_is_nothing_to_draw(kernels: Kernels) -> None:
    nothing = torch.full((V,), -torch.inf)
    not_numbers = torch.full((V,), torch.nan)
    one = nothing.clone()
    one[4321] = -3.0
    for temperature in (0.0, 1.0):
        rows = [
            DrawRow(logits, None, temperature, 0.0, 0, 1.0, 0.5)
            for logits in (nothing, not_numbers, one)
        ]
        assert draw_tokens(kernels, rows, V) == [-1, -1, 4321]
        assert draw_tokens(kernels, rows, 4321) == [-1, -1, -1], "what lies beyond is padding"


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_few_allowed_tokens_are_found_wherever_they_are(
    kernels: Kernels, temperature: float
) -> None:
    logits = torch.zeros(V)
    logits[[1, 300, V - 1]] = 2.0
    places = [0, 1, 255, 256, 4095, V - 1]
    rows = []
    for place in places:
        allowed = np.zeros(-(-V // 32), dtype=np.uint32)
        allowed[place // 32] = 1 << place % 32
        rows.append(DrawRow(logits, allowed.view(np.int32), temperature, 0.0, 0, 1.0, 0.5))
    assert draw_tokens(kernels, rows, V) == places
    everything = DrawRow(logits, None, 0.0, 0.0, 0, 1.0, 0.5)
    assert draw_tokens(kernels, [everything], V) == [1], "the first of equals"
