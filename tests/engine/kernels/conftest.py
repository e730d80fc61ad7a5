"""The kernels, built for each kind of CPU that this one is or stands in for."""

from __future__ import annotations

import pytest
import torch

from tokenloom_engine.kernels.build import build_kernels
from tokenloom_engine.kernels.levels import LEVELS, Level
from tokenloom_engine.kernels.library import Kernels

STAND_INS = (
    # The same sources as for avx2_vnni: AVX-512 has its product of bytes in another encoding.
    Level(
        "avx2_vnni_by_avx512",
        "",
        ("avx512_vnni", "avx512_vl", "avx2", "fma3", "f16c", "bmi2"),
        ("-march=x86-64-v3", "-mavx512vl", "-mavx512vnni"),
    ),
)


@pytest.fixture(scope="session", params=(*LEVELS, *STAND_INS), ids=lambda level: level.name)
def kernels(request: pytest.FixtureRequest) -> Kernels:
    level: Level = request.param
    if not level.runs_on(torch.cpu.get_capabilities()):
        pytest.skip(f"this CPU has no {level.name}")
    path = build_kernels(level)
    if path is None:
        pytest.skip("there is no C++ compiler")
    return Kernels(path, level, threads=2)
