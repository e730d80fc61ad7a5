"""Real clients, unmodified, each in a virtual environment of its own (tests/clients)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.serving import Server

FOLDER = Path(__file__).parent.parent / "clients"
ENVIRONMENTS = {"current": "-clients", "older_hub": "-clients-older-hub"}
"""What the folder's interpreter has behind the name of the tests' own environment."""
ENVIRONMENT = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
SECONDS = 180


@pytest.mark.parametrize(
    "file",
    [path for folder in ENVIRONMENTS for path in sorted((FOLDER / folder).glob("test_*.py"))],
    ids=lambda path: path.stem,
)
def test_client(server: Server, file: Path) -> None:
    python = Path(sys.prefix + ENVIRONMENTS[file.parent.name], "bin", "python")
    assert python.exists(), f"there is no {python}: run `make setup`"
    run = subprocess.run(
        [python, "-m", "pytest", "-c", FOLDER / "pytest.ini", file],
        env={**os.environ, "TOKENLOOM_URL": server.url, **ENVIRONMENT},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert run.returncode == 0, run.stdout
