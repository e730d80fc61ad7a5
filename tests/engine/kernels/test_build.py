"""Building the kernels ahead, for every kind of CPU."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

import pytest

from tokenloom_engine.kernels import build
from tokenloom_engine.kernels.levels import X86_LEVELS


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
    sources = tmp_path / "csrc"
    sources.mkdir()
    (sources / "some.cpp").write_text("int some = 1;")
    monkeypatch.setenv("CXX", str(old))
    monkeypatch.setattr(build, "SOURCES", sources)
    monkeypatch.setattr(build, "PREBUILT", tmp_path / "prebuilt")
    monkeypatch.setattr(build, "LEVELS", X86_LEVELS)
    with caplog.at_level(logging.INFO):
        assert build.main() == 0
    *skipped, built = X86_LEVELS
    assert [record.levelno for record in caplog.records[:-1]] == [logging.WARNING] * len(skipped)
    for level, message in zip(skipped, caplog.messages, strict=False):
        assert message.startswith(f"{level.name}: skipped")
    assert (build.PREBUILT / build.library_name(built) / build.LIBRARY).is_file()
