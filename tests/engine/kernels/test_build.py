"""Prebuilt kernels: how they are built, and which are taken where there is no compiler."""

from __future__ import annotations

import ctypes
import logging
import platform
import shutil
from pathlib import Path

import pytest

from tokenloom_engine.kernels import build
from tokenloom_engine.kernels.build import LIBRARY, build_kernels, find_compiler, library_name, main
from tokenloom_engine.kernels.levels import LEVELS, X86_LEVELS, best_level

SOURCE = (
    '#include <string>\nextern "C" int add_two(int n) { return n + std::string("ab").size(); }\n'
)


@pytest.fixture(autouse=True)
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only source, which compiles at once."""
    file = tmp_path / "csrc" / "add_two.cpp"
    file.parent.mkdir()
    file.write_text(SOURCE)
    monkeypatch.setattr(build, "SOURCES", file.parent)
    return file


@pytest.fixture
def prebuilt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder of prebuilt kernels for every level, on a machine that then has no compiler."""
    if find_compiler() is None:
        pytest.skip("there is no C++ compiler")
    folder = tmp_path / "prebuilt"
    assert main([str(folder), "--static-runtime"]) == 0
    monkeypatch.setattr(build, "PREBUILT", folder)
    monkeypatch.setenv("CXX", "no-compiler")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return folder


def test_prebuilt_kernels_need_no_compiler(prebuilt: Path, tmp_path: Path) -> None:
    paths = [build_kernels(level) for level in LEVELS]
    assert paths == [prebuilt / library_name(level) / LIBRARY for level in LEVELS]
    assert ctypes.CDLL(str(build_kernels(best_level()))).add_two(40) == 42
    assert not (tmp_path / "cache").exists()


def test_prebuilt_kernels_need_no_library_of_the_compiler(prebuilt: Path) -> None:
    for level in LEVELS:
        assert b"libstdc++.so" not in (prebuilt / library_name(level) / LIBRARY).read_bytes()


def test_prebuilt_kernels_of_other_sources_are_not_taken(
    prebuilt: Path, source: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source.write_text(f"{SOURCE}\n")
    assert build_kernels(best_level()) is None
    assert "No C++ compiler" in caplog.text


def test_kernels_of_another_architecture_have_another_name(monkeypatch: pytest.MonkeyPatch) -> None:
    names = {library_name(level) for level in LEVELS}
    monkeypatch.setattr(platform, "machine", lambda: "other")
    assert names.isdisjoint({library_name(level) for level in LEVELS})


def test_building_without_a_compiler_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "no-compiler")
    assert main([str(tmp_path / "built")]) == 1
    assert not (tmp_path / "built").exists()


def test_levels_that_an_old_compiler_does_not_know_are_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    compiler = shutil.which("c++")
    if compiler is None:
        pytest.skip("there is no C++ compiler")
    old = tmp_path / "old"
    old.write_text(
        f'#!/bin/sh\nfor flag; do case "$flag" in -m*) exit 1;; esac; done\nexec {compiler} "$@"\n'
    )
    old.chmod(0o755)
    folder = tmp_path / "prebuilt"
    monkeypatch.setenv("CXX", str(old))
    monkeypatch.setattr(build, "LEVELS", X86_LEVELS)
    with caplog.at_level(logging.INFO):
        assert main([str(folder)]) == 0
    *skipped, built = X86_LEVELS
    assert [record.levelno for record in caplog.records[:-1]] == [logging.WARNING] * len(skipped)
    for level, message in zip(skipped, caplog.messages, strict=False):
        assert message.startswith(f"{level.name}: skipped")
    assert (folder / library_name(built) / LIBRARY).is_file()
