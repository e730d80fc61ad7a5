"""The kernels, built for each kind of CPU that this one is."""

from __future__ import annotations

import pytest
import torch

from tokenloom_engine.kernels.build import LEVELS, build_kernels
from tokenloom_engine.kernels.library import Kernels

def _runs_here(level: str) -> bool:
    found = torch.cpu.get_capabilities()
    return all(found.get(need) for need in LEVELS[level].needed)


@pytest.fixture(scope="session", params=LEVELS)
def kernels(request: pytest.FixtureRequest) -> Kernels:
    level: str = request.param
    if not _runs_here(level):
        pytest.skip(f"this CPU has no {level}")
    path = build_kernels(level)
    if path is None:
        pytest.skip("there is no C++ compiler")
    return Kernels(path, level, threads=2)
