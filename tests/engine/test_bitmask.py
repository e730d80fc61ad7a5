"""Bits become -inf and 0, token by token."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tokenloom_engine.bitmask import BitmaskFill, bitmask_bias


@pytest.mark.parametrize("vocab_size", [32, 64, 70, 4096])
def test_each_bit_is_its_own_token(vocab_size: int) -> None:
    words = -(-vocab_size // 32)
    rng = np.random.default_rng(vocab_size)
    bitmask = rng.integers(-(2**31), 2**31, (5, words), dtype=np.int64).astype(np.int32)
    bitmask[0], bitmask[1] = 0, -1
    bias = bitmask_bias(bitmask, vocab_size, torch.device("cpu"))
    assert bias.shape == (5, vocab_size) and bias.dtype == torch.float32
    for row in range(5):
        for id in range(vocab_size):
            is_allowed = int(bitmask[row, id // 32]) >> (id % 32) & 1
            assert bias[row, id] == (0 if is_allowed else -torch.inf)


@pytest.mark.parametrize("rows", [[0, 1, 2], [2], [2, 0]])
def test_only_the_rows_that_are_meant_change(rows: list[int]) -> None:
    scores = torch.randn(3, 70)
    expected = scores.clone()
    bitmask = np.random.default_rng(1).integers(-(2**31), 2**31, (len(rows), 3)).astype(np.int32)
    bits = np.unpackbits(bitmask.view(np.uint8), axis=1, bitorder="little")[:, :70]
    for row, allowed in zip(rows, bits, strict=True):
        expected[row, torch.from_numpy(allowed == 0)] = -torch.inf
    BitmaskFill(torch.device("cpu")).apply(scores, rows, bitmask)
    assert torch.equal(scores, expected)
    assert scores.isinf().any()
