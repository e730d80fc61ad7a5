from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from tests.server.running import RunningServer, running, script
from tokenloom_engine.messages import SequenceOutput, Token

SLOW = {"max_new_tokens": 2000}
HANG = {"stop": ["hang"]}
FIRST_ONLY = {"stop": [script(SequenceOutput(0, [Token(1, "x", -1.0)]))]}


@pytest.fixture(scope="module")
def narrow(tokenizer_file: Path) -> Iterator[RunningServer]:
    """A server with a single permit: what keeps it is seen at once."""
    with running(tokenizer_file, max_concurrent_requests=1) as server:
        yield server


def connect(server: RunningServer, path: str, parameters: Mapping[str, object]) -> socket.socket:
    body = json.dumps({"inputs": "a", "parameters": parameters, **_stream(path)}).encode()
    connection = socket.create_connection(("127.0.0.1", server.port), timeout=10)
    head = (
        f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\n\r\n"
    )
    connection.sendall(head.encode() + body)
    return connection


def _stream(path: str) -> dict[str, object]:
    return {"stream": True} if path == "/" else {}


def post(server: RunningServer, parameters: Mapping[str, object]) -> httpx.Response:
    return httpx.post(f"{server.url}/generate", json={"inputs": "a", "parameters": parameters})


def wait_until_taken(server: RunningServer) -> None:
    """Until the one permit is held."""
    while post(server, {"max_new_tokens": 1}).status_code != 429:
        time.sleep(0.002)


def num_aborted(server: RunningServer) -> int:
    """As the engine counts them; waits for the permit, but not for long."""
    deadline = time.monotonic() + 2
    while (response := post(server, {"stop": ["aborts"]})).status_code == 429:
        assert time.monotonic() < deadline, "the permit did not come back"
        time.sleep(0.002)
    return int(response.json()["generated_text"])


@pytest.mark.parametrize(
    ("path", "parameters"),
    [
        ("/generate", SLOW),
        ("/generate", HANG),
        ("/generate_stream", HANG),
        ("/generate_stream", SLOW),
        ("/generate_stream", FIRST_ONLY),
        ("/", SLOW),
    ],
)
def test_a_client_that_leaves_frees_its_place(
    narrow: RunningServer, path: str, parameters: Mapping[str, object]
) -> None:
    before = num_aborted(narrow)
    for _ in range(3):
        with connect(narrow, path, parameters):
            wait_until_taken(narrow)
        num_aborted(narrow)
    assert num_aborted(narrow) == before + 3


def test_a_client_that_leaves_in_mid_stream(narrow: RunningServer) -> None:
    before = num_aborted(narrow)
    with connect(narrow, "/generate_stream", SLOW) as connection:
        received = b""
        while received.count(b"data: ") < 5:
            received += connection.recv(4096)
    assert num_aborted(narrow) == before + 1


def test_a_client_that_resets_in_mid_stream(narrow: RunningServer) -> None:
    before = num_aborted(narrow)
    connection = connect(narrow, "/generate_stream", SLOW)
    connection.recv(4096)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
    connection.close()
    assert num_aborted(narrow) == before + 1


def test_a_client_that_leaves_while_its_request_is_read(narrow: RunningServer) -> None:
    before = num_aborted(narrow)
    with socket.create_connection(("127.0.0.1", narrow.port)) as connection:
        connection.sendall(
            b"POST /generate HTTP/1.1\r\nhost: localhost\r\n"
            b'content-type: application/json\r\ncontent-length: 1000\r\n\r\n{"inputs":'
        )
    assert num_aborted(narrow) == before


def test_500_that_leave_at_any_moment(tokenizer_file: Path) -> None:
    """None of them may keep one of the 16 permits."""
    with running(tokenizer_file, max_concurrent_requests=16) as server:
        for number in range(500):
            path = "/generate_stream" if number % 2 else "/generate"
            with connect(server, path, SLOW) as connection:
                if number % 10 == 1:
                    connection.recv(100)
        deadline = time.monotonic() + 5
        while statuses_at_once(server, 16) != {b"200"}:  # the last may not be gone yet
            assert time.monotonic() < deadline, "permits are lost"


def statuses_at_once(server: RunningServer, number: int) -> set[bytes]:
    """The statuses of so many requests that run at the same time."""
    with ExitStack() as connections:
        waiting = [
            connections.enter_context(connect(server, "/generate_stream", SLOW))
            for _ in range(number)
        ]
        return {connection.recv(12)[9:] for connection in waiting}


def test_the_death_of_the_engine_ends_all_requests(tokenizer_file: Path) -> None:
    with running(tokenizer_file) as server:
        whole = connect(server, "/generate", HANG)
        unstarted = connect(server, "/generate_stream", HANG)
        started = connect(server, "/generate_stream", FIRST_ONLY)
        with whole, unstarted, started:
            received = started.recv(4096)
            pid = server.router.engine_pids[0]
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            assert whole.recv(4096).startswith(b"HTTP/1.1 424 ")
            assert unstarted.recv(4096).startswith(b"HTTP/1.1 424 ")
            while not received.endswith(b"0\r\n\r\n"):
                received += started.recv(4096)
    assert received.startswith(b"HTTP/1.1 200 ")
    event = received.split(b"data: ")[-1]
    assert json.loads(event.split(b"\n\n")[0])["error_type"] == "generation"


@pytest.mark.parametrize(
    "path", ["/generate", "/", "/invocations", "/vertex", "/tokenize", "/v1/completions"]
)
@pytest.mark.parametrize("framing", ["content-length: 30", "transfer-encoding: chunked"])
def test_a_client_that_leaves_within_its_body_is_no_bug(
    narrow: RunningServer, caplog: pytest.LogCaptureFixture, path: str, framing: str
) -> None:
    connection = socket.create_connection(("127.0.0.1", narrow.port), timeout=10)
    part = "2\r\n{ \r\n" if "chunked" in framing else "{ "
    head = f"POST {path} HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n{framing}\r\n\r\n"
    connection.sendall((head + part).encode())
    time.sleep(0.05)
    connection.close()
    time.sleep(0.05)
    assert post(narrow, {"max_new_tokens": 1}).is_success
    assert [record.message for record in caplog.records if record.levelname == "ERROR"] == []
