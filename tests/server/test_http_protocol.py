"""Connections, from plain sockets: limits of size and time, half-closed clients, HTTP/1.0."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.router.running import samples
from tests.server.running import RunningServer, running, script
from tests.server.scripted_engine import LARGE_BYTES
from tokenloom_engine.messages import SequenceOutput, Token

LIMIT = 4096
SOON = 0.3
MANY = 1_000_000
"""More bytes than one read of the socket brings."""
LONG = {"inputs": "abc", "parameters": {"max_new_tokens": 60}}
LONGER = {"inputs": "abc", "parameters": {"max_new_tokens": 200}}
HANG = {"inputs": "a", "parameters": {"stop": ["hang"]}}
FIRST_ONLY = {"inputs": "a", "parameters": {"stop": [script(SequenceOutput(0, [Token(1, "x")]))]}}


@pytest.fixture(scope="module")
def limited(tokenizer_file: Path) -> Iterator[RunningServer]:
    """A server with small limits and a single permit."""
    with running(
        tokenizer_file,
        max_concurrent_requests=1,
        max_header_bytes=LIMIT,
        header_timeout=SOON,
        body_timeout=SOON,
        send_timeout=SOON,
    ) as server:
        yield server


def connect(server: RunningServer, receive_buffer: int | None = None) -> socket.socket:
    connection = socket.socket()
    if receive_buffer is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    connection.settimeout(10)
    connection.connect(("127.0.0.1", server.port))
    return connection


def request(path: str, body: dict[str, Any], *headers: str, version: str = "1.1") -> bytes:
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/{version}\r\nhost: a\r\ncontent-type: application/json\r\n"
    lines = "".join(f"{header}\r\n" for header in (*headers, f"content-length: {len(content)}"))
    return (head + lines + "\r\n").encode() + content


def chunked(*chunks: bytes) -> bytes:
    head = b"POST /tokenize HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n"
    return head + b"transfer-encoding: chunked\r\n\r\n" + b"".join(chunks)


def send_until_answered(connection: socket.socket, data: bytes, piece: int) -> bytes:
    """Send all of it, or until the server closes; return what it sent."""
    with suppress(OSError):
        for start in range(0, len(data), piece):
            connection.sendall(data[start : start + piece])
    return received(connection)


def received(connection: socket.socket) -> bytes:
    """All that comes until the connection is closed."""
    data = b""
    with suppress(ConnectionError):
        while more := connection.recv(65536):
            data += more
    return data


def status(answer: bytes) -> int:
    return int(answer[9:12])


def post(server: RunningServer, body: dict[str, Any]) -> httpx.Response:
    return httpx.post(f"{server.url}/generate", json=body)


def until(is_true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not is_true():
        assert time.monotonic() < deadline, "it does not become true"
        time.sleep(0.005)


def has_permit(server: RunningServer) -> bool:
    """Whether the one permit is free."""
    return post(server, {"inputs": "a", "parameters": {"max_new_tokens": 1}}).status_code == 200


def num_aborted(server: RunningServer) -> int:
    """As the engine counts them, once the permit is free."""
    until(lambda: has_permit(server))
    return int(
        post(server, {"inputs": "a", "parameters": {"stop": ["aborts"]}}).json()["generated_text"]
    )


def num_submitted(server: RunningServer) -> float:
    """Count the requests that were sent to the engine; only these can be aborted there."""
    return samples(server.metrics)["tgi_request_max_new_tokens_count"]


def is_open(server: RunningServer, port: int) -> bool:
    """Whether the server still holds the connection from this port."""
    connections = psutil.Process().net_connections("tcp4")
    ours = [c for c in connections if c.laddr.port == server.port and c.raddr]
    return any(c.raddr.port == port for c in ours)


LARGE = [
    (b"GET /" + b"a" * LIMIT + b" HTTP/1.1\r\nhost: a\r\n\r\n", 414),
    (b"GET /health?" + b"a=1&" * LIMIT + b" HTTP/1.1\r\nhost: a\r\n\r\n", 414),
    (b"GET /health HTTP/1.1\r\nx: " + b"a" * LIMIT + b"\r\n\r\n", 431),
    (b"GET /health HTTP/1.1\r\n" + b"a" * LIMIT + b": x\r\n\r\n", 431),
    (b"GET /health HTTP/1.1\r\n" + b"abcd: efgh\r\n" * 101 + b"\r\n", 431),
    (b"GET /health HTTP/1.1\r\n" + b"ab: " + b"e" * 100 + b"\r\n" + b"a:\r\n" * 999 + b"\r\n", 431),
    (b"GET /health HTTP/1.1\r\n" + (b"ab: " + b"e" * 100 + b"\r\n") * 50 + b"\r\n", 431),
    (chunked(b"2\r\n{}\r\n0\r\nx: " + b"a" * LIMIT + b"\r\n\r\n"), 431),
    (chunked(b"2\r\n{}\r\n0\r\n" + b"x: y\r\n" * 101 + b"\r\n"), 431),
]


@pytest.mark.parametrize("piece", [1000, 10_000_000])
@pytest.mark.parametrize(("data", "expected"), LARGE)
def test_a_header_that_grows_too_large(
    limited: RunningServer, data: bytes, expected: int, piece: int
) -> None:
    with connect(limited) as connection:
        answer = send_until_answered(connection, data, piece)
    assert status(answer) == expected
    assert b"\r\nconnection: close\r\n" in answer
    assert httpx.get(f"{limited.url}/health").is_success


@pytest.mark.parametrize(
    "data",
    [
        b"\r\n" * MANY + b"GET /health HTTP/1.1\r\nhost: a\r\n\r\n",
        chunked(b"2;" + b"a" * MANY + b"\r\n{}\r\n0\r\n\r\n"),
        chunked(*[b"1;" + b"a" * 99 + b"\r\n \r\n"] * (MANY // 100)),
    ],
)
def test_framing_that_grows_too_large(limited: RunningServer, data: bytes) -> None:
    with connect(limited) as connection:
        answer = send_until_answered(connection, data, 1000)
    assert status(answer) == 431


def test_a_header_without_end_is_not_kept(limited: RunningServer) -> None:
    """The answer comes while the client still sends."""
    with connect(limited) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nx: ")
        connection.setblocking(False)
        sent = 0
        while sent < 100_000_000:
            with suppress(BlockingIOError):
                sent += connection.send(b"a" * 10_000)
            try:
                answer = connection.recv(4096)
            except BlockingIOError:
                continue
            break
    assert status(answer) == 431


def test_headers_within_the_limits(limited: RunningServer) -> None:
    many = {f"x-{number}": "a" for number in range(90)}
    assert httpx.get(f"{limited.url}/health", headers=many).is_success
    assert httpx.get(f"{limited.url}/health", headers={"x": "a" * (LIMIT - 300)}).is_success
    assert httpx.get(f"{limited.url}/health?{'a' * (LIMIT - 300)}").is_success


@pytest.mark.parametrize("piece", [1000, 10_000_000])
def test_a_body_in_chunks_of_a_byte(limited: RunningServer, piece: int) -> None:
    content = json.dumps({"inputs": "a" * 5000}).encode()
    chunks = [b"1\r\n%c\r\n" % byte for byte in content]
    trailer = b"0\r\nauthorization: x\r\n\r\n"
    last = b"GET /livez HTTP/1.1\r\nconnection: close\r\n\r\n"
    with connect(limited) as connection:
        answer = send_until_answered(connection, chunked(*chunks, trailer) + last, piece)
    assert status(answer) == 200
    assert answer.count(b"HTTP/1.1 200 OK") == 2


@pytest.mark.parametrize(
    "part",
    [
        b"GET /hea",
        b"GET /health HTTP/1.1\r\nx: a",
        b"\r\n",
        b"POST /generate HTTP/1.1\r\ncontent-length: 10\r\n\r\n{",
        b"POST /generate HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n1\r\n{",
        chunked(b"2\r\n{}\r\n0\r\nx: a"),
        b"GET /livez HTTP/1.1\r\n\r\nGET /livez HTTP/1.1\r\n",
    ],
)
def test_a_request_that_does_not_come_to_its_end(limited: RunningServer, part: bytes) -> None:
    with connect(limited) as connection:
        first = b""
        if part.startswith(b"GET /livez"):
            whole, _, part = part.partition(b"\r\n\r\n")
            connection.sendall(whole + b"\r\n\r\n")
            first = connection.recv(4096)
        connection.sendall(part)
        answer = received(connection)
    assert status(answer) == 408
    assert b"\r\nconnection: close\r\n" in answer
    assert not first or status(first) == 200


def test_a_body_that_comes_by_the_byte(limited: RunningServer) -> None:
    """Progress does not extend the time."""
    with connect(limited) as connection:
        connection.sendall(b"POST /generate HTTP/1.1\r\ncontent-length: 100000\r\n\r\n")
        with suppress(OSError):
            for _ in range(200):
                connection.sendall(b"{")
                time.sleep(0.01)
        assert status(received(connection)) == 408


def test_a_connection_without_a_request_is_closed(limited: RunningServer) -> None:
    with connect(limited) as connection:
        assert received(connection) == b""


def test_the_next_request_may_wait_for_the_response(limited: RunningServer) -> None:
    """What was sent of it has no time limit while an earlier one is being answered."""
    with connect(limited) as connection:
        connection.sendall(request("/generate_stream", LONGER) + b"GET /livez HTTP/1.1\r\n")
        answer = b""
        while b"0\r\n\r\n" not in answer:
            answer += connection.recv(65536)
        connection.sendall(b"connection: close\r\n\r\n")
        answer += received(connection)
    assert answer.count(b"data: ") == 200
    assert answer.count(b"HTTP/1.1 200 ") == 2


def test_too_many_requests_in_advance(limited: RunningServer) -> None:
    before = num_aborted(limited)
    submitted = num_submitted(limited)
    with connect(limited) as connection:
        connection.sendall(request("/generate", HANG))
        until(lambda: num_submitted(limited) == submitted + 1)
        connection.sendall(b"GET /livez HTTP/1.1\r\n\r\n" * 1000)
        assert received(connection) == b""
    assert num_aborted(limited) == before + 1


def test_garbage_behind_a_request_does_not_enter_its_stream(limited: RunningServer) -> None:
    with connect(limited) as connection:
        connection.sendall(request("/generate_stream", FIRST_ONLY))
        answer = connection.recv(65536)
        while b"data: " not in answer:
            answer += connection.recv(65536)
        connection.sendall(b"garbage\r\n\r\n")
        answer += received(connection)
    assert answer.count(b"HTTP/1.1") == 1
    assert num_aborted(limited) > 0


def test_a_client_that_does_not_read_its_stream(limited: RunningServer) -> None:
    """Its sequence is aborted, though it goes on."""
    before = num_aborted(limited)
    body = {"inputs": "a", "parameters": {"stop": ["large hang"]}}
    with connect(limited, receive_buffer=4096) as connection:
        connection.sendall(request("/generate_stream", body))
        until(lambda: limited.router.num_open_requests == 1)
        until(lambda: limited.router.num_open_requests == 0)
        assert len(received(connection)) < LARGE_BYTES
    assert num_aborted(limited) == before + 1


@pytest.mark.parametrize("header", ["connection: close", "connection: keep-alive"])
@pytest.mark.parametrize("path", ["/generate", "/generate_stream"])
def test_a_client_that_does_not_read_the_rest(
    limited: RunningServer, path: str, header: str
) -> None:
    """The permit is free at once, the connection after the time limit."""
    body = {"inputs": "a", "parameters": {"stop": ["large"]}}
    with connect(limited, receive_buffer=4096) as connection:
        port = connection.getsockname()[1]
        connection.sendall(request(path, body, header))
        assert connection.recv(100).startswith(b"HTTP/1.1 200 ")
        assert has_permit(limited)
        until(lambda: not is_open(limited, port))
    assert httpx.get(f"{limited.url}/health").is_success


def test_requests_one_after_the_other_need_one_permit(limited: RunningServer) -> None:
    body = {"inputs": "a", "parameters": {"max_new_tokens": 1}}
    for number in range(60):
        with connect(limited) as connection:
            path = "/generate_stream" if number % 2 else "/generate"
            connection.sendall(request(path, body))
            answer = b""
            while b"generated_text" not in answer:
                answer += connection.recv(65536)
        assert status(answer) == 200


# Clients that shut down their sending side


@pytest.mark.parametrize("version", ["1.0", "1.1"])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/generate", LONG),
        ("/generate_stream", LONG),
        ("/vertex", {"instances": [LONG]}),
        ("/v1/completions", {"prompt": "abc", "max_tokens": 60}),
        ("/v1/completions", {"prompt": "abc", "max_tokens": 60, "stream": True}),
    ],
)
@pytest.mark.parametrize("seconds", [0, 0.05])
def test_a_half_closed_client_gets_its_answer(
    limited: RunningServer, path: str, body: dict[str, Any], version: str, seconds: float
) -> None:
    with connect(limited) as connection:
        connection.sendall(request(path, body, version=version))
        time.sleep(seconds)
        connection.shutdown(socket.SHUT_WR)
        answer = received(connection)
    while answer.startswith(b"HTTP/1.1 100 Continue\r\n\r\n"):
        answer = answer.split(b"\r\n\r\n", 1)[1]
    assert status(answer) == 200
    head, _, rest = answer.partition(b"\r\n\r\n")
    if b"event-stream" in head:
        assert rest.count(b"data: ") >= 60
        assert b"\r\n100 Continue" not in rest
    else:
        assert rest.endswith(b"}")
        json.loads(rest)


@pytest.mark.parametrize("path", ["/generate", "/generate_stream"])
@pytest.mark.parametrize("body", [HANG, FIRST_ONLY])
def test_a_half_closed_client_that_leaves(
    limited: RunningServer, path: str, body: dict[str, Any]
) -> None:
    before = num_aborted(limited)
    submitted = num_submitted(limited)
    with connect(limited) as connection:
        connection.sendall(request(path, body))
        until(lambda: num_submitted(limited) == submitted + 1)
        connection.shutdown(socket.SHUT_WR)
        time.sleep(0.1)
        assert limited.router.num_open_requests == 1
    assert num_aborted(limited) == before + 1


def test_a_half_closed_client_whose_request_is_not_whole(limited: RunningServer) -> None:
    with connect(limited) as connection:
        connection.sendall(request("/generate", HANG)[:-1])
        connection.shutdown(socket.SHUT_WR)
        assert received(connection) == b""


# HTTP/1.0


@pytest.mark.parametrize(
    ("path", "body", "end"),
    [
        ("/generate_stream", LONG, b"\n\n"),
        (
            "/v1/completions",
            {"prompt": "abc", "max_tokens": 60, "stream": True},
            b"data: [DONE]\n\n",
        ),
    ],
)
@pytest.mark.parametrize("headers", [(), ("connection: keep-alive",)])
def test_a_stream_to_a_client_of_http_1_0(
    limited: RunningServer, path: str, body: dict[str, Any], end: bytes, headers: tuple[str, ...]
) -> None:
    with connect(limited) as connection:
        connection.sendall(request(path, body, *headers, version="1.0"))
        head, _, events = received(connection).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 ")
    assert b"transfer-encoding" not in head
    assert head.count(b"\r\nconnection: ") == head.count(b"\r\nconnection: close") <= 1
    assert events.startswith(b"data: ")
    assert events.endswith(end)
    assert b"\r" not in events
    assert events.count(b"data: ") == events.count(b"\n\n") >= 60


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize("path", ["/metrics", "/docs", "/nothing"])
def test_a_response_with_a_length_to_a_client_of_http_1_0(
    limited: RunningServer, method: str, path: str
) -> None:
    expected = httpx.request(method, limited.url + path)
    with connect(limited) as connection:
        connection.sendall(f"{method} {path} HTTP/1.0\r\n\r\n".encode())
        head, _, rest = received(connection).partition(b"\r\n\r\n")
    assert status(head) == expected.status_code
    assert b"transfer-encoding" not in head
    assert (method == "HEAD") == (rest == b"") or expected.status_code == 404


@pytest.mark.parametrize("header", ["connection: close", "connection: keep-alive"])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/generate_stream", LONG),
        ("/v1/completions", {"prompt": "abc", "max_tokens": 4, "stream": True}),
        ("/generate", LONG),
    ],
)
def test_what_is_said_of_the_connection(
    limited: RunningServer, path: str, body: dict[str, Any], header: str
) -> None:
    with connect(limited) as connection:
        connection.sendall(request(path, body, header))
        head = b""
        while b"\r\n\r\n" not in head:
            head += connection.recv(4096)
    head = head.partition(b"\r\n\r\n")[0]
    assert head.count(b"\r\nconnection: ") == head.count(b"\r\nconnection: close")
    assert head.count(b"\r\nconnection: close") == ("close" in header)


# How many connections there may be


@pytest.fixture
def few(tokenizer_file: Path) -> Iterator[RunningServer]:
    with running(tokenizer_file, max_connections=6) as server:
        yield server


@pytest.mark.parametrize(
    "part", [b"", b"GET /health HTTP/1.1\r\nx", request("/generate", LONG)[:-1]]
)
def test_a_crowd_of_idle_connections(
    few: RunningServer, part: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """They do not keep others away, and running streams go on."""
    with ExitStack() as stack, connect(few) as streamed:
        streamed.sendall(request("/generate_stream", FIRST_ONLY))
        streamed.recv(10)
        idle = [stack.enter_context(connect(few)) for _ in range(40)]
        for connection in idle:
            with suppress(OSError):
                connection.sendall(part)
        for _ in range(10):
            assert httpx.get(f"{few.url}/health").is_success
        assert received(idle[0]) == b""
        assert few.router.num_open_requests == 1
    (line,) = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert "More than 6 connections (--max-connections, `ulimit -n`)" in line


def test_a_connection_that_is_answered_is_not_closed(few: RunningServer) -> None:
    with ExitStack() as stack:
        busy = [stack.enter_context(connect(few)) for _ in range(6)]
        for connection in busy:
            connection.sendall(request("/generate_stream", FIRST_ONLY))
            assert status(connection.recv(4096)) == 200
        with connect(few) as another:
            assert received(another) == b""
        assert few.router.num_open_requests == 6
    until(lambda: few.router.num_open_requests == 0)
    assert httpx.get(f"{few.url}/health").is_success
