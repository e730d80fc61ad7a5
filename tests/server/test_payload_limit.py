from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.server.running import RunningServer, running

LIMIT = 1000


@pytest.fixture(scope="module")
def limited(tokenizer_file: Path) -> Iterator[RunningServer]:
    with running(tokenizer_file, payload_limit=LIMIT) as server:
        yield server


def body(length: int) -> bytes:
    """A valid body of exactly so many bytes."""
    text = json.dumps({"inputs": "", "parameters": {"max_new_tokens": 1, "truncate": 1}})
    return text.replace('""', f'"{"a" * (length - len(text))}"').encode()


@pytest.mark.parametrize("path", ["/generate", "/generate_stream", "/", "/tokenize"])
@pytest.mark.parametrize("is_chunked", [False, True])
def test_a_body_beyond_the_limit(limited: RunningServer, path: str, is_chunked: bool) -> None:
    content = body(LIMIT + 1)
    chunks = (content[start : start + 100] for start in range(0, len(content), 100))
    response = httpx.post(
        limited.url + path,
        content=chunks if is_chunked else content,
        headers={"content-type": "application/json"},
    )
    assert response.request.headers.get("transfer-encoding") == ("chunked" if is_chunked else None)
    assert response.status_code == 413
    assert response.headers["content-type"] == "text/plain; charset=utf-8"
    assert response.text == "Failed to buffer the request body: length limit exceeded"


def test_a_body_at_the_limit(limited: RunningServer) -> None:
    response = httpx.post(
        f"{limited.url}/generate",
        content=body(LIMIT),
        headers={"content-type": "application/json"},
    )
    assert response.status_code == 200


def test_a_large_body_is_refused_before_it_is_sent(limited: RunningServer) -> None:
    with socket.create_connection(("127.0.0.1", limited.port), timeout=5) as connection:
        connection.sendall(
            b"POST /generate HTTP/1.1\r\nhost: localhost\r\nexpect: 100-continue\r\n"
            b"content-type: application/json\r\ncontent-length: 999999999999\r\n\r\n"
        )
        assert connection.recv(4096).startswith(b"HTTP/1.1 413 ")
