"""Clients that leave: their rows and permits are free at once."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from tests.integration.serving import Server, body, serve

PERMITS = 8
LEAVERS = 500
LONG = {"max_new_tokens": 1000, "ignore_eos": True}


@pytest.fixture(scope="module")
def narrow(model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with few permits: a lost one is soon missed."""
    log = tmp_path_factory.mktemp("narrow") / "log"
    flags = ("--model-id", str(model_path), "--max-concurrent-requests", str(PERMITS))
    with serve(log, *flags) as server:
        yield server


def connect(server: Server, path: str = "/generate_stream") -> socket.socket:
    """Send a long request; the answer is still to be read."""
    content = json.dumps(body("Tell me a story about", LONG)).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        f"content-length: {len(content)}\r\n\r\n"
    )
    address = urlsplit(server.url)
    connection = socket.create_connection((address.hostname, address.port), timeout=60)
    connection.sendall(head.encode() + content)
    return connection


def read_tokens(connection: socket.socket, number: int) -> bytes:
    """Read until there were so many events, or the connection ends."""
    received = b""
    while received.count(b"data: ") < number and (data := connection.recv(65536)):
        received += data
        if b"HTTP/1.1 429" in received:
            break
    return received


def seconds_until_idle(server: Server) -> float:
    """How long sequences are still in the batch."""
    start = time.monotonic()
    while server.metric("tgi_batch_current_size") > 0:
        assert time.monotonic() - start < 10, "a sequence goes on without its client"
        time.sleep(0.005)
    return time.monotonic() - start


def leave(server: Server, number: int) -> None:
    """Get a permit, read some tokens, and go."""
    deadline = time.monotonic() + 10
    while True:
        with closing(connect(server)) as connection:
            if read_tokens(connection, 1 + number % 3).startswith(b"HTTP/1.1 200"):
                return
        assert time.monotonic() < deadline, "a permit did not come back"


@pytest.mark.parametrize("path", ["/generate", "/generate_stream"])
def test_the_row_of_a_client_that_left_is_gone_within_a_step(narrow: Server, path: str) -> None:
    with closing(connect(narrow, path)):
        while narrow.metric("tgi_batch_current_size") == 0:
            time.sleep(0.005)
    assert seconds_until_idle(narrow) < 1


def test_every_permit_comes_back(narrow: Server) -> None:
    with ThreadPoolExecutor(PERMITS) as threads:
        assert len(list(threads.map(lambda number: leave(narrow, number), range(LEAVERS)))) == 500
    seconds_until_idle(narrow)
    with ExitStack() as connections:
        running = [connections.enter_context(closing(connect(narrow))) for _ in range(PERMITS)]
        assert all(read_tokens(connection, 1).startswith(b"HTTP/1.1 200") for connection in running)
        start = time.monotonic()
        refused = httpx.post(f"{narrow.url}/generate", json=body("a", {}))
        seconds = time.monotonic() - start
    assert refused.status_code == 429
    assert refused.json() == {"error": "Model is overloaded", "error_type": "overloaded"}
    assert seconds < 0.5
    seconds_until_idle(narrow)


def test_dropped_and_overloaded_are_counted_apart_and_a_full_server_is_healthy(
    narrow: Server,
) -> None:
    def failures() -> dict[str, float]:
        lines = httpx.get(f"{narrow.url}/metrics").text.splitlines()
        found = [line.split('"') for line in lines if line.startswith("tgi_request_failure{")]
        return {err: float(value.removeprefix("} ")) for _, err, value in found}

    before = failures()
    with ExitStack() as connections:
        for _ in range(PERMITS):
            read_tokens(connections.enter_context(closing(connect(narrow))), 1)
        for _ in range(3):
            assert httpx.post(f"{narrow.url}/generate", json=body("a", {})).status_code == 429
        assert httpx.get(f"{narrow.url}/health").status_code == 200
    seconds_until_idle(narrow)
    after = failures()
    grown = {err: after[err] - before[err] for err in after if after[err] != before[err]}
    assert grown == {"overloaded": 3, "dropped": PERMITS}
