"""The kernels, built for each kind of CPU that they have a path for."""

from __future__ import annotations

import pytest
import torch

from tokenloom_engine.kernels.build import NATIVE, build_kernels
from tokenloom_engine.kernels.library import Kernels

INSTRUCTIONS = {
    "native": NATIVE,
    "avx2": ("-mavx2", "-mfma", "-mf16c"),
    "plain": (),
}


@pytest.fixture(scope="session", params=INSTRUCTIONS)
def kernels(request: pytest.FixtureRequest) -> Kernels:
    if request.param == "avx2" and not torch.cpu.get_capabilities().get("avx2"):
        pytest.skip("this CPU has no AVX2")
    path = build_kernels(INSTRUCTIONS[request.param])
    if path is None:
        pytest.skip("there is no C++ compiler")
    return Kernels(path, threads=2)
