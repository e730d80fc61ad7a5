"""A real server: `tokenloom serve` as its own process, and requests to it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil

START_SECONDS = 120.0
Json = dict[str, Any]


@dataclass(frozen=True)
class Server:
    """A running server."""

    url: str
    process: subprocess.Popen[bytes]
    log: Path

    def generate(self, inputs: str, **parameters: Any) -> Json:  # noqa: ANN401 - JSON
        """POST /generate; returns the response, asserting 200."""
        response = httpx.post(f"{self.url}/generate", json=body(inputs, parameters), timeout=120)
        assert response.status_code == 200, response.text
        result: Json = response.json()
        return result

    def metric(self, name: str) -> float:
        """A metric without labels."""
        text = httpx.get(f"{self.url}/metrics", timeout=10).text
        return next(float(line.split()[1]) for line in text.splitlines() if line.split()[0] == name)

    def engine_pid(self) -> int:
        """The process id of the engine."""
        for child in psutil.Process(self.process.pid).children():
            if "tokenloom_engine.process" in child.cmdline():
                return child.pid
        raise AssertionError("there is no engine process")


@contextmanager
def serve(log: Path, *flags: str, **environment: str) -> Iterator[Server]:
    """Start a server, wait until it answers, and end it with SIGTERM."""
    port = free_port()
    command = [sys.executable, "-m", "tokenloom_server.cli", "serve", "--port", str(port), *flags]
    command += ["--hostname", "127.0.0.1"]
    with log.open("wb") as stream:
        process = subprocess.Popen(
            command, stdout=stream, stderr=stream, env={**os.environ, **environment}
        )
    server = Server(f"http://127.0.0.1:{port}", process, log)
    try:
        wait_until_healthy(server)
        yield server
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            raise


def wait_until_healthy(server: Server) -> float:
    """Returns the seconds that it took."""
    start = time.monotonic()
    while time.monotonic() < start + START_SECONDS:
        assert server.process.poll() is None, server.log.read_text()
        with suppress(httpx.TransportError):  # not listening yet
            if httpx.get(f"{server.url}/health", timeout=5).status_code == 200:
                return time.monotonic() - start
        time.sleep(0.1)
    raise AssertionError(f"not healthy in time:\n{server.log.read_text()}")


def body(inputs: str, parameters: Json) -> Json:
    """A request body of TGI's dialect."""
    return {"inputs": inputs, "parameters": parameters}


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@asynccontextmanager
async def client(server: Server) -> AsyncIterator[httpx.AsyncClient]:
    """An HTTP client without limits of its own."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    async with httpx.AsyncClient(base_url=server.url, timeout=300, limits=limits) as http:
        yield http


async def generate(http: httpx.AsyncClient, inputs: str, **parameters: Any) -> Json:  # noqa: ANN401
    """POST /generate with details; returns the response, asserting 200."""
    response = await http.post("/generate", json=body(inputs, {"details": True, **parameters}))
    assert response.status_code == 200, response.text
    result: Json = response.json()
    return result


async def events(
    http: httpx.AsyncClient,
    inputs: str,
    **parameters: Any,  # noqa: ANN401
) -> AsyncIterator[Json]:
    """POST /generate_stream; yields the events."""
    async with http.stream("POST", "/generate_stream", json=body(inputs, parameters)) as response:
        assert response.status_code == 200, (await response.aread()).decode()
        async for line in response.aiter_lines():
            if line.startswith("data: "):
                yield json.loads(line.removeprefix("data: "))


def token_ids(response: Json) -> list[int]:
    """The generated ids of a response with details."""
    return [token["id"] for token in response["details"]["tokens"]]
