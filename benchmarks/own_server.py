"""A server process that lives as long as a benchmark."""

from __future__ import annotations

import shlex
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

START_TIMEOUT_SECONDS = 600.0
STOP_TIMEOUT_SECONDS = 30.0


@contextmanager
def own_server(url: str | None, flags: str) -> Iterator[str]:
    """Yield `url` if there is one, else the URL of a server started with `flags`."""
    if url is not None:
        yield url.rstrip("/")
        return
    port = free_port()
    command = [str(Path(sys.executable).with_name("tokenloom")), "serve"]
    command += ["--hostname", "127.0.0.1", "--port", str(port), *shlex.split(flags)]
    # Standard output is for the figures alone.
    process = subprocess.Popen(command, stdout=sys.stderr)
    try:
        own_url = f"http://127.0.0.1:{port}"
        wait_until_healthy(own_url, process)
        yield own_url
    finally:
        stop(process)


def free_port() -> int:
    """A port that nothing listens on now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def wait_until_healthy(url: str, process: subprocess.Popen[bytes]) -> None:
    """Return once /health says 200. Raises RuntimeError if the process ends or takes too long."""
    deadline = time.monotonic() + START_TIMEOUT_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"the server ended with code {process.returncode}")
        if is_healthy(url):
            return
        time.sleep(0.2)
    raise RuntimeError("the server did not become healthy in time")


def is_healthy(url: str) -> bool:
    """Whether the server takes requests."""
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=5) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def stop(process: subprocess.Popen[bytes]) -> None:
    """Ask the process to end; make it end if it does not."""
    process.terminate()
    try:
        process.wait(STOP_TIMEOUT_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
