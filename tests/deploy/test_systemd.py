"""The systemd unit: valid, hardened, and with times that fit the server's."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tokenloom_router.engine_process import STOP_SECONDS
from tokenloom_server.http_server import LAST_SECONDS
from tokenloom_server.settings import Settings

UNIT = Path(__file__).parents[2] / "deploy/systemd/tokenloom.service"
MAX_EXPOSURE = "20"
"""In tenths, of 100."""
SECONDS = {"s": 1, "min": 60, "h": 3600}

needs_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed"
)


def values(name: str) -> list[str]:
    lines = UNIT.read_text().splitlines()
    return [line.removeprefix(f"{name}=") for line in lines if line.startswith(f"{name}=")]


def seconds(name: str) -> int:
    (text,) = values(name)
    number = text.rstrip("hmins")
    return int(number) * SECONDS[text.removeprefix(number)]


def default(name: str) -> float:
    value: float = Settings.model_fields[name].default
    return value


def analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["systemd-analyze", *arguments], capture_output=True, text=True)


@needs_systemd
def test_the_unit_is_valid(tmp_path: Path) -> None:
    (command,) = values("ExecStart")
    program = command.split()[0]
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text().replace(program, sys.executable))
    verified = analyze("verify", str(unit))
    assert (verified.returncode, verified.stdout, verified.stderr) == (0, "", "")


@needs_systemd
def test_the_unit_is_hardened() -> None:
    rated = analyze("security", "--offline=true", f"--threshold={MAX_EXPOSURE}", str(UNIT))
    assert rated.returncode == 0, rated.stdout


def test_its_times_fit_the_server() -> None:
    assert seconds("WatchdogSec") > 2 * default("engine_stall_timeout")
    end = default("graceful_termination_timeout") + LAST_SECONDS + STOP_SECONDS
    assert seconds("TimeoutStopSec") > end
    assert values("Type") == ["notify"] and values("NotifyAccess") == ["main"]


def test_its_variables_are_settings() -> None:
    names = {pair.split("=")[0] for line in values("Environment") for pair in line.split()}
    own = names - {"HOME", "HF_HOME", "XDG_CACHE_HOME"}
    assert own and {name.lower() for name in own} <= Settings.model_fields.keys()
