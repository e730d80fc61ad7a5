"""The draws look random, and are a function of seed and position."""

from __future__ import annotations

import numpy as np

from tokenloom_engine.randomness import uniform


def test_same_seed_and_position_same_number() -> None:
    seeds = np.array([1, 1, 2, 2**64 - 1], dtype=np.uint64)
    positions = np.array([0, 1, 0, 2**63], dtype=np.uint64)
    whole = uniform(seeds, positions)
    alone = [uniform(seeds[i : i + 1], positions[i : i + 1])[0] for i in range(4)]
    assert whole.tolist() == alone
    assert len(set(alone)) == 4


def test_numbers_are_uniform_and_independent_along_seeds_and_positions() -> None:
    steps = np.arange(100_000, dtype=np.uint64)
    zeros = np.zeros_like(steps)
    for numbers in (uniform(zeros, steps), uniform(steps, zeros)):
        assert numbers.min() >= 0 and numbers.max() < 1
        counts = np.histogram(numbers, bins=100, range=(0, 1))[0]
        chi_square = float(((counts - 1000) ** 2 / 1000).sum())
        assert chi_square < 160, "99 degrees of freedom: beyond the 0.9999 quantile"
        assert abs(np.corrcoef(numbers[:-1], numbers[1:])[0, 1]) < 0.015
