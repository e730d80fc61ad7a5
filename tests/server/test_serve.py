"""Start and end of the server, as its own process."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import psutil
import pytest

ROOT = Path(__file__).parents[2]
STREAM = {"inputs": "a", "parameters": {"max_new_tokens": 500}}
LONG_STREAM = {"inputs": "a", "parameters": {"max_new_tokens": 2000}}


@contextmanager
def started(
    tokenizer_file: Path, *, launcher: Sequence[str] = (), **given: str
) -> Iterator[subprocess.Popen[str]]:
    """A server process with these settings, started by another command if need be."""
    variables = {"MODEL_ID": "scripted", "HOSTNAME": "127.0.0.1", "PORT": "0"}
    variables |= {name.upper(): value for name, value in given.items()}
    with subprocess.Popen(
        [*launcher, sys.executable, "-m", "tests.server.serve_scripted", str(tokenizer_file)],
        cwd=ROOT,
        env={**os.environ, **variables},
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def url_of(process: subprocess.Popen[str]) -> str:
    """Its address, once it says that it is ready."""
    assert process.stderr is not None
    for line in process.stderr:
        if found := re.search(r"Ready: \S+ is served at (http://127\.0\.0\.1:\d+)", line):
            return found[1]
    raise AssertionError("the server ended before it was ready")


def rest(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Its exit status, and what it still wrote."""
    _, written = process.communicate(timeout=10)
    return process.returncode, written


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_in_order(tokenizer_file: Path, number: signal.Signals) -> None:
    with started(tokenizer_file) as process:
        url = url_of(process)
        assert httpx.get(f"{url}/health").status_code == 200
        process.send_signal(number)
        status, written = rest(process)
    assert status == 0
    assert "Stopping: running requests get 90 s to finish" in written
    assert "Request finished" not in written, "without --access-log"
    assert "Traceback" not in written
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{url}/health")


def test_running_requests_finish_first(tokenizer_file: Path) -> None:
    with started(tokenizer_file) as process, httpx.Client(base_url=url_of(process)) as client:
        with client.stream("POST", "/generate_stream", json=STREAM) as response:
            lines = response.iter_lines()
            next(lines)
            process.send_signal(signal.SIGTERM)
            time.sleep(0.2)
            for path in ("/health", "/readyz", "/ping", "/"):
                assert httpx.get(f"{client.base_url}{path}").status_code == 503
            assert httpx.get(f"{client.base_url}/livez").status_code == 200
            refused = httpx.post(f"{client.base_url}/generate", json=STREAM)
            assert (refused.status_code, refused.json()["error_type"]) == (503, "unavailable")
            assert refused.json()["error"] == "The server is shutting down"
            assert int(refused.headers["retry-after"]) > 0
            *_, last = (json.loads(line[6:]) for line in lines if line)
        assert last["index"] == 500
        assert last["generated_text"]
        status, written = rest(process)
    assert (status, "Traceback" in written) == (0, False)


def test_a_request_that_arrives_too_late_is_refused(tokenizer_file: Path) -> None:
    content = json.dumps(STREAM).encode()
    head = (
        "POST /generate HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        f"content-length: {len(content)}\r\n\r\n"
    )
    with started(tokenizer_file) as process:
        address = urlsplit(url_of(process))
        with socket.create_connection((address.hostname, address.port), timeout=10) as connection:
            connection.sendall(head.encode() + content[:10])
            time.sleep(0.1)
            process.send_signal(signal.SIGTERM)
            time.sleep(0.3)
            connection.sendall(content[10:])
            assert connection.recv(4096).startswith(b"HTTP/1.1 503 ")
        assert rest(process)[0] == 0


def test_they_end_with_an_error_after_the_timeout(tokenizer_file: Path) -> None:
    with started(tokenizer_file, graceful_termination_timeout="1") as process:
        url = url_of(process)
        with (
            ThreadPoolExecutor() as threads,
            httpx.Client(base_url=url) as client,
            client.stream("POST", "/generate_stream", json=LONG_STREAM) as streamed,
        ):
            whole = threads.submit(httpx.post, f"{url}/generate", json=LONG_STREAM)
            time.sleep(0.3)
            process.send_signal(signal.SIGTERM)
            stopped_at = time.monotonic()
            *_, last = (json.loads(line[6:]) for line in streamed.iter_lines() if line)
        status, written = rest(process)
        assert time.monotonic() - stopped_at < 5
    error = {
        "error": "Request failed during generation: the server is shutting down",
        "error_type": "generation",
    }
    assert last == error
    assert (whole.result().status_code, whole.result().json()) == (424, error)
    assert (status, "Traceback" in written) == (0, False)


def test_a_second_signal_ends_it_at_once(tokenizer_file: Path) -> None:
    with started(tokenizer_file) as process, httpx.Client(base_url=url_of(process)) as client:
        with client.stream("POST", "/generate_stream", json=LONG_STREAM) as streamed:
            lines = streamed.iter_lines()
            next(lines)
            process.send_signal(signal.SIGTERM)
            time.sleep(0.3)
            assert process.poll() is None
            process.send_signal(signal.SIGTERM)
            *_, last = (json.loads(line[6:]) for line in lines if line)
        assert last["error_type"] == "generation"
        status, written = rest(process)
    assert (status, "Traceback" in written) == (0, False)
    assert "Stopping at once" in written


def test_a_full_server_that_stops_says_so(tokenizer_file: Path) -> None:
    with (
        started(tokenizer_file, max_concurrent_requests="1") as process,
        httpx.Client(base_url=url_of(process)) as client,
        client.stream("POST", "/generate_stream", json=LONG_STREAM) as streamed,
    ):
        lines = streamed.iter_lines()
        next(lines)
        assert httpx.post(f"{client.base_url}/generate", json=STREAM).status_code == 429
        process.send_signal(signal.SIGTERM)
        time.sleep(0.3)
        assert httpx.post(f"{client.base_url}/generate", json=STREAM).status_code == 503


def test_a_port_that_is_taken_is_found_before_anything_is_loaded(tokenizer_file: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        with started(tokenizer_file, model_id="endless", port=port) as process:
            status, written = rest(process)
    assert status == 1
    (line,) = written.splitlines()
    assert line.endswith(f"cannot listen on 127.0.0.1 port {port}: Address already in use")


def test_an_engine_that_cannot_start_is_one_line(tokenizer_file: Path) -> None:
    with started(tokenizer_file, model_id="broken") as process:
        status, written = rest(process)
    assert status == 1
    (line,) = written.splitlines()
    assert line.endswith("the model is broken")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_loading_can_be_broken_off(tokenizer_file: Path, number: signal.Signals) -> None:
    with started(tokenizer_file, model_id="endless") as process:
        assert process.stderr is not None
        assert process.stderr.readline() == "loading\n"
        process.send_signal(number)
        status, written = rest(process)
    assert status == 0
    (line,) = written.splitlines()
    assert line.endswith("Stopped before the model was loaded")


def test_more_connections_than_files(tokenizer_file: Path) -> None:
    """Health is told and a running stream goes on, whoever else is connected."""
    few_files = ["bash", "-c", 'ulimit -n 96 && exec "$@"', "-"]
    with started(tokenizer_file, launcher=few_files) as process:
        address = urlsplit(url_of(process))
        with (
            httpx.Client(base_url=address.geturl()) as client,
            client.stream("POST", "/generate_stream", json=LONG_STREAM) as streamed,
            ExitStack() as stack,
        ):
            lines = streamed.iter_lines()
            next(lines)
            for _ in range(200):
                connection = socket.create_connection((address.hostname, address.port), timeout=10)
                stack.callback(connection.close)
            for _ in range(5):
                assert httpx.get(f"{address.geturl()}/health").status_code == 200
            *_, last = (json.loads(line[6:]) for line in lines if line)
        assert last["index"] == 2000
        process.send_signal(signal.SIGTERM)
        status, written = rest(process)
    assert status == 0
    assert written.count("connections (--max-connections, `ulimit -n`)") == 1
    assert written.count("connections fit into the limit of open files") <= 1
    assert "Traceback" not in written


def test_logs_can_be_json(tokenizer_file: Path) -> None:
    with started(tokenizer_file, json_output="1") as process:
        assert process.stderr is not None
        ready = process.stderr.readline()
        process.send_signal(signal.SIGTERM)
        _, written = rest(process)
    records = [json.loads(line) for line in (ready, *written.splitlines())]
    assert [record["message"].split(":")[0] for record in records] == ["Ready", "Stopping"]
    assert {record["level"] for record in records} == {"INFO"}


def test_what_a_killed_server_left_goes_at_the_next_start(
    tokenizer_file: Path, tmp_path: Path
) -> None:
    def sockets() -> set[Path]:
        return set(tmp_path.glob("tokenloom-*"))

    with started(tokenizer_file, tmpdir=str(tmp_path)) as killed:
        url_of(killed)
        (left,) = sockets()
        with started(tokenizer_file, tmpdir=str(tmp_path)) as beside:
            url = url_of(beside)
            assert left in sockets(), "that of a server that runs"
            killed.kill()
            killed.wait()
            assert len(sockets()) == 2
            with started(tokenizer_file, tmpdir=str(tmp_path)) as later:
                url_of(later)
                assert left not in sockets() and len(sockets()) == 2
                assert httpx.post(f"{url}/generate", json=STREAM).status_code == 200
                later.send_signal(signal.SIGTERM)
                rest(later)
            assert len(sockets()) == 1


def test_helper_processes_have_no_secrets(tokenizer_file: Path, tmp_path: Path) -> None:
    template = tmp_path / "tokenizer_config.json"
    template.write_text('{"chat_template": "{{ messages[0].content }}"}')
    secrets = {
        "api_key": "s3cret-1",
        "hf_token": "s3cret-2",
        "aws_secret_access_key": "s3cret-3",
        "database_url": "postgres://user:s3cret-4@host/base",
        "otel_exporter_otlp_headers": "authorization=s3cret-5",
    }
    headers = {"authorization": "Bearer s3cret-1"}
    chat = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1}
    others = {"some_setting": "kept", "tokenizer_config_path": str(template)}
    others["model_id"] = str(tokenizer_file)  # for a Hub model the engine needs the Hub's token
    with started(tokenizer_file, **others, **secrets) as process:
        url = url_of(process)
        answer = httpx.post(f"{url}/v1/chat/completions", json=chat, headers=headers)
        assert answer.status_code == 200, answer.text
        children = psutil.Process(process.pid).children(recursive=True)
        commands = " ".join(" ".join(child.cmdline()) for child in children)
        for name in ("scripted_engine", "trials.process", "chat_renderer"):
            assert name in commands
        for child in children:
            environment = child.environ()
            assert environment["SOME_SETTING"] == "kept"
            assert "s3cret" not in " ".join((*environment.values(), *child.cmdline()))
