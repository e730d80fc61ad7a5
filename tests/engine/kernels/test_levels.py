"""Each kind of CPU gets the kernels that it can run, and they are right on those of ARM."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tokenloom_engine.cache import cache_folder, keep
from tokenloom_engine.kernels.build import FLAGS, LIBRARY, SOURCES, compile_library, library_name
from tokenloom_engine.kernels.levels import ARM_LEVELS, X86_LEVELS, Level, best_level

HASWELL = {"avx2", "fma3", "f16c", "bmi2"}
SKYLAKE = HASWELL | {"avx512_f", "avx512_bw", "avx512_vl", "avx512_dq"}
CASCADE_LAKE = SKYLAKE | {"avx512_vnni"}
COOPER_LAKE = CASCADE_LAKE | {"avx512_bf16"}
ALDER_LAKE = HASWELL | {"avx_vnni"}
CPUS = [
    (X86_LEVELS, set(), "baseline"),
    (X86_LEVELS, HASWELL, "avx2"),
    (X86_LEVELS, ALDER_LAKE, "avx2_vnni"),
    (X86_LEVELS, SKYLAKE, "avx512"),
    (X86_LEVELS, CASCADE_LAKE, "avx512_vnni"),
    (X86_LEVELS, COOPER_LAKE, "avx512_bf16"),
    (ARM_LEVELS, {"neon"}, "baseline"),
    (ARM_LEVELS, {"neon", "dot"}, "neon_dot"),
    (ARM_LEVELS, {"neon", "dot", "bf16", "i8mm"}, "neon_bf16"),
]
ARM_COMPILER, ARM_ROOT = "aarch64-linux-gnu-g++", "/usr/aarch64-linux-gnu"
EMULATED = {"neon_bf16": "max", "neon_dot": "neoverse-n1", "baseline": "cortex-a53"}
"""A CPU of each level that has none of the better levels' instructions."""


@pytest.mark.parametrize(("levels", "has", "expected"), CPUS, ids=[name for *_, name in CPUS])
def test_takes_the_best_level_of_a_cpu(
    levels: tuple[Level, ...], has: set[str], expected: str
) -> None:
    assert best_level(dict.fromkeys(has, True), levels).name == expected


@pytest.mark.parametrize("level", ARM_LEVELS, ids=lambda level: level.name)
def test_arm_kernels_equal_plain_loops(level: Level, tmp_path: Path) -> None:
    emulator = shutil.which("qemu-aarch64")
    if emulator is None or shutil.which(ARM_COMPILER) is None:
        pytest.skip("needs g++-aarch64-linux-gnu and qemu-user")
    folder = keep(
        cache_folder() / "kernels" / f"aarch64-{library_name(level)}",
        lambda target: compile_library(ARM_COMPILER, level, target),
    )
    program = tmp_path / "reference_check"
    sources = [Path(__file__).with_name("reference_check.cpp"), folder / LIBRARY]
    flags = [*FLAGS, *level.flags, "-O1", "-I", str(SOURCES), f"-Wl,-rpath,{folder}"]
    subprocess.run([ARM_COMPILER, *flags, *map(str, sources), "-o", str(program)], check=True)
    command = [emulator, "-cpu", EMULATED[level.name], "-L", ARM_ROOT, str(program)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stdout
