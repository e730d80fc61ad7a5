"""Lines of the access log, as a server writes them."""

from __future__ import annotations

import fcntl
import json
import logging
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from tests.server.running import RunningServer, running, script
from tests.server.test_serve import rest, started, url_of
from tokenloom_engine.logs import add_request_id
from tokenloom_engine.messages import SequenceOutput

MESSAGE = "Request finished"
TIMES = ("queue_seconds", "first_token_seconds", "total_seconds")
FAILING = script(SequenceOutput(0, error="the row is bad"))
PIPE_BYTES = 4096
PREFLIGHT = {"origin": "x", "access-control-request-method": "POST"}


def body(inputs: str, **parameters: Any) -> dict[str, Any]:  # noqa: ANN401
    return {"inputs": inputs, "parameters": parameters}


def send_raw(url: str, data: bytes) -> bytes:
    address = urlsplit(url)
    with socket.create_connection((address.hostname, address.port), timeout=10) as connection:
        connection.sendall(data)
        return connection.recv(4096)


def requests_in(written: str) -> list[dict[str, Any]]:
    records = [json.loads(line) for line in written.splitlines()]
    return [record for record in records if record["message"] == MESSAGE]


def test_one_line_for_each_request(tokenizer_file: Path) -> None:
    given = {"access_log": "1", "json_output": "1", "api_key": "k", "payload_limit": "300"}
    with started(tokenizer_file, **given, body_timeout="0.3", max_header_bytes="2000") as process:
        assert process.stderr is not None
        url = json.loads(process.stderr.readline())["message"].split(" ")[5]
        key = {"authorization": "Bearer k"}
        with httpx.Client(base_url=url, headers=key) as client:
            answer = client.post("/generate", json=body("abc", max_new_tokens=4))
            named = {"x-request-id": "mine"}
            client.post("/generate_stream", json=body("a", max_new_tokens=2), headers=named)
            prompts = {"prompt": ["ab", "c"], "max_tokens": 3}
            client.post("/v1/completions", json=prompts)
            client.post("/generate", json=body("a", stop=[FAILING]))
            client.post("/generate", json=body(""))
            client.post("/generate", json={"inputs": 1})
            client.post("/generate", json=body("a" * 400))
            client.post("/generate", headers={"authorization": ""})
            client.get("/health")
            client.get("/nowhere%0A2026-01-01 INFO forged")
            client.options("/generate", headers=PREFLIGHT)
        head = b"POST /generate HTTP/1.1\r\nhost: a\r\nauthorization: Bearer k\r\n"
        late = head + b"content-type: application/json\r\ncontent-length: 9\r\n\r\n{"
        assert send_raw(url, late).startswith(b"HTTP/1.1 408 ")
        assert send_raw(url, b"nonsense\r\n\r\n").startswith(b"HTTP/1.1 400 ")
        assert send_raw(url, head + b"x: " + b"y" * 3000).startswith(b"HTTP/1.1 431 ")
        process.send_signal(signal.SIGTERM)
        status, written = rest(process)
    assert (status, "Traceback" in written) == (0, False)

    lines = requests_in(written)
    outcomes = [(line.get("route"), line["status"]) for line in lines]
    assert outcomes == [
        ("/generate", 200),
        ("/generate_stream", 200),
        ("/v1/completions", 200),
        ("/generate", 424),
        ("/generate", 422),
        ("/generate", 422),
        ("other", 413),
        ("other", 401),
        ("/health", 200),
        ("other", 404),
        ("other", 200),
        ("/generate", 408),
        (None, 400),
        (None, 431),
    ]
    whole, streamed, several, failed, invalid, malformed, *_ = lines
    assert whole["request_id"] == answer.headers["x-request-id"]
    assert streamed["request_id"] == "mine"
    ids = [line["request_id"] for line in lines if "method" in line]
    assert len(set(ids)) == len(ids) == 12
    tokens = [(line["input_tokens"], line["output_tokens"]) for line in (whole, streamed, several)]
    assert tokens == [(3, 4), (1, 2), (3, 6)]
    for line in (whole, streamed, several):
        queue, first, total = (line[name] for name in TIMES)
        assert 0 <= queue <= first <= total
        assert "error_type" not in line
    assert [line["error_type"] for line in (failed, invalid)] == ["generation", "validation"]
    assert "input_tokens" not in invalid and "error_type" not in malformed


def test_a_log_that_nobody_reads_delays_no_request(tokenizer_file: Path) -> None:
    with started(tokenizer_file, access_log="1") as process:
        url = url_of(process)
        assert process.stderr is not None
        fcntl.fcntl(process.stderr, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        num_requests = PIPE_BYTES // 20
        with httpx.Client(base_url=url, timeout=10) as client:
            for _ in range(num_requests):
                assert client.get("/health").status_code == 200
        process.send_signal(signal.SIGTERM)
        status, written = rest(process)
    assert status == 0
    lines = [line for line in written.splitlines() if MESSAGE in line]
    assert len(lines) == num_requests
    fields = dict(pair.split("=") for pair in lines[0].split(f"{MESSAGE} ")[1].split())
    assert fields.keys() == {"method", "route", "status", "total_seconds", "request_id"}


@pytest.fixture(scope="module")
def server(tokenizer_file: Path) -> Iterator[RunningServer]:
    with running(tokenizer_file, access_log=True) as server:
        yield server


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """All that is logged, with the ids of requests."""
    caplog.set_level(logging.INFO)
    caplog.handler.addFilter(add_request_id)
    yield caplog
    caplog.handler.removeFilter(add_request_id)


def test_a_client_that_leaves(server: RunningServer, log: pytest.LogCaptureFixture) -> None:
    long = body("a", max_new_tokens=2000)
    with httpx.stream("POST", f"{server.url}/generate_stream", json=long) as streamed:
        next(streamed.iter_lines())
    deadline = time.monotonic() + 10
    while not (lines := [r for r in log.records if r.getMessage() == MESSAGE]):
        assert time.monotonic() < deadline, "no line"
        time.sleep(0.01)
    fields = vars(lines[0])
    assert (fields["route"], fields["status"]) == ("/generate_stream", 200)
    assert (fields["error_type"], fields["input_tokens"]) == ("dropped", 1)
    assert 1 <= fields["output_tokens"] < 2000
    assert fields["request_id"] == streamed.headers["x-request-id"]


def test_the_engine_is_told_the_id(server: RunningServer) -> None:
    named = {"x-request-id": "mine"}
    asks = body("a", stop=["request id"])
    answer = httpx.post(f"{server.url}/generate", json=asks, headers=named)
    assert answer.json()["generated_text"] == "mine"


def test_a_bug_is_an_error_500_of_its_request(
    server: RunningServer, log: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object, **__: object) -> None:
        raise LookupError("a bug")

    monkeypatch.setattr(server.router, "tokenize", fail)
    named = {"x-request-id": "mine"}
    answer = httpx.post(f"{server.url}/tokenize", json=body("a"), headers=named)
    counts = server.metrics.render().decode()
    assert (answer.status_code, answer.headers["x-request-id"]) == (500, "mine")
    assert 'tgi_http_responses{method="POST",route="/tokenize",status="500"} 1.0' in counts
    deadline = time.monotonic() + 10
    while len(of_request := [r for r in log.records if vars(r).get("request_id") == "mine"]) < 2:
        assert time.monotonic() < deadline, "uvicorn logs the traceback after the response"
        time.sleep(0.01)
    line, traceback = of_request
    fields = vars(line)
    assert (line.message, fields["status"], fields["error_type"]) == (MESSAGE, 500, "internal")
    assert traceback.exc_info is not None and traceback.exc_info[0] is LookupError
