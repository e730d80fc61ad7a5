"""Loops over threads run every turn once."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tokenloom_engine.kernels.build import SOURCES


def test_every_index_comes_once(tmp_path: Path) -> None:
    compiler = shutil.which("c++")
    if compiler is None:
        pytest.skip("there is no C++ compiler")
    program = tmp_path / "stress"
    sources = [Path(__file__).with_name("parallel_stress.cpp"), SOURCES / "parallel.cpp"]
    flags = ["-std=c++17", "-O2", "-pthread", "-I", str(SOURCES)]
    subprocess.run([compiler, *flags, *map(str, sources), "-o", str(program)], check=True)
    result = subprocess.run(
        [program, "200000"], capture_output=True, text=True, timeout=120, check=False
    )
    assert result.returncode == 0, result.stdout
