"""The wheels: a pure one, and one with kernels, which serves where there is no compiler."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from zipfile import ZipFile

import pytest

from tests.integration.serving import serve
from tokenloom_engine.kernels.build import LIBRARY, find_compiler
from tokenloom_engine.kernels.levels import LEVELS

ROOT = Path(__file__).parents[2]
PREBUILT = "tokenloom_engine/kernels/prebuilt"
SOURCE = 'extern "C" int add_two(int n) { return n + 2; }\n'
WITH_KERNELS = {"HATCH_BUILD_HOOK_ENABLE_CUSTOM": "true"}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A copy of the project whose kernels compile at once, and what an earlier build left in it."""
    folder = tmp_path / "project"
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packages = settings["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    ignored = shutil.ignore_patterns("__pycache__", "csrc", "prebuilt")
    for package in packages:
        shutil.copytree(ROOT / package, folder / package, ignore=ignored)
    for name in ("pyproject.toml", "README.md", "LICENSE", ".gitignore", "engine/hatch_build.py"):
        shutil.copy(ROOT / name, folder / name)
    kernels = folder / "engine/tokenloom_engine/kernels"
    for file in (kernels / "csrc/add_two.cpp", kernels / "prebuilt" / "old" / LIBRARY):
        file.parent.mkdir(parents=True)
        file.write_text(SOURCE)
    return folder


def build(project: Path, **environment: str) -> Path:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", "dist"]
    subprocess.run(command, cwd=project, env={**os.environ, **environment}, check=True)
    (wheel,) = project.glob("dist/*.whl")
    return wheel


def test_a_pure_wheel_has_no_kernels(project: Path) -> None:
    wheel = build(project)
    assert wheel.name.endswith("-py3-none-any.whl")
    names = ZipFile(wheel).namelist()
    assert "tokenloom_engine/kernels/csrc/add_two.cpp" in names
    assert [name for name in names if name.startswith(PREBUILT)] == []


@pytest.mark.skipif(find_compiler() is None, reason="there is no C++ compiler")
def test_a_wheel_with_kernels_has_every_level_and_a_platform(project: Path) -> None:
    wheel = build(project, **WITH_KERNELS)
    assert "-py3-none-any" not in wheel.name
    archive = ZipFile(wheel)
    (settings,) = (name for name in archive.namelist() if name.endswith("/WHEEL"))
    assert "Root-Is-Purelib: false" in archive.read(settings).decode()
    libraries = [name for name in archive.namelist() if name.startswith(PREBUILT)]
    levels = [name.split("/")[-2].rpartition("-")[0] for name in libraries]
    assert sorted(levels) == sorted(level.name for level in LEVELS)


@pytest.mark.skipif("WHEEL_DIR" not in os.environ, reason="make test-deploy names the WHEEL_DIR")
def test_the_wheel_serves_without_a_compiler(model_path: Path, tmp_path: Path) -> None:
    wheels = Path(os.environ["WHEEL_DIR"]).glob("*.whl")
    wheel = max(wheels, key=lambda path: path.stat().st_mtime)
    assert "-manylinux_" in wheel.name
    site, cache, empty = tmp_path / "site", tmp_path / "cache", tmp_path / "empty"
    empty.mkdir()
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
    subprocess.run([*command, "--target", str(site), str(wheel)], check=True)
    environment = {"PYTHONPATH": str(site), "PATH": str(empty), "XDG_CACHE_HOME": str(cache)}
    with serve(tmp_path / "log", "--model-id", str(model_path), **environment) as server:
        assert server.generate("Water boils at", max_new_tokens=8)["generated_text"]
    log = (tmp_path / "log").read_text()
    assert "CPU level " in log
    assert "No C++ compiler" not in log
    assert not (cache / "tokenloom" / "kernels").exists()
