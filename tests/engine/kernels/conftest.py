"""The kernels, built for each kind of CPU that this one is."""

from __future__ import annotations

import pytest

from tokenloom_engine.kernels.build import LEVELS, best_level, build_kernels
from tokenloom_engine.kernels.library import Kernels

TRIED = [name for name in LEVELS if name != "avx512"]
"""That differs from its better by one instruction, which the worse do without, too."""


@pytest.fixture(scope="session", params=TRIED)
def kernels(request: pytest.FixtureRequest) -> Kernels:
    level: str = request.param
    if list(LEVELS).index(level) < list(LEVELS).index(best_level()):
        pytest.skip(f"this CPU has no {level}")
    path = build_kernels(level)
    if path is None:
        pytest.skip("there is no C++ compiler")
    return Kernels(path, threads=2)
