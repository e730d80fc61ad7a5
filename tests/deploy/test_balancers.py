"""Settings of nginx, haproxy and caddy pass streams on as they come and repeat no generation."""

from __future__ import annotations

import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import httpx
import pytest

from tests.server.conftest import tokenizer_file
from tests.server.running import RunningServer, running, script
from tokenloom_engine.messages import SequenceOutput, Token

__all__ = ["tokenizer_file"]

FOLDER = Path(__file__).parents[2] / "deploy" / "balancers"
NGINX = """
daemon off;
pid {folder}/nginx.pid;
error_log {folder}/error.log;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    include {folder}/nginx.conf;
}}
"""
COMMANDS = {
    "nginx.conf": ["nginx", "-c", "{folder}/main.conf"],
    "haproxy.cfg": ["haproxy", "-db", "-f", "{folder}/haproxy.cfg"],
    "Caddyfile": ["caddy", "run", "--config", "{folder}/Caddyfile", "--adapter", "caddyfile"],
}
TOKENS = [f"({number})" for number in range(12)]
ENDLESS = script(*(SequenceOutput(0, [Token(7, text, -1.0)], started_at=1.0) for text in TOKENS))
"""The engine sends these tokens one by one, and nothing after them."""
SECONDS = 10


@pytest.fixture(scope="module")
def servers(tokenizer_file: Path) -> Iterator[tuple[RunningServer, RunningServer]]:
    with running(tokenizer_file) as first, running(tokenizer_file) as second:
        yield first, second


@pytest.fixture(scope="module", params=COMMANDS)
def balancer(
    request: pytest.FixtureRequest,
    servers: tuple[RunningServer, RunningServer],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[str]:
    """The address of a balancer before both servers."""
    ports = [server.port for server in servers]
    with balancing(request.param, tmp_path_factory.mktemp("balancer"), ports) as address:
        yield address


@contextmanager
def balancing(name: str, folder: Path, ports: list[int]) -> Iterator[str]:
    program = COMMANDS[name][0]
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed")
    port = free_port()
    text = (FOLDER / name).read_text().replace("8080", str(port))
    text = text.replace("127.0.0.1:3000", f"127.0.0.1:{ports[0]}")
    text = text.replace("127.0.0.1:3001", f"127.0.0.1:{ports[1]}")
    (folder / name).write_text(text)
    (folder / "main.conf").write_text(NGINX.format(folder=folder))
    command = [part.format(folder=folder) for part in COMMANDS[name]]
    environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": str(folder)}
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
    try:
        address = f"http://127.0.0.1:{port}"
        wait_until_ready(address, process, folder / "log")
        yield address
    finally:
        process.terminate()
        try:
            process.wait(1)
        except subprocess.TimeoutExpired:  # caddy waits for the streams that go on
            process.kill()
            process.wait()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def wait_until_ready(address: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        assert process.poll() is None, log.read_text()
        try:
            if httpx.get(f"{address}/health").status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.05)
    raise AssertionError(log.read_text())


@pytest.mark.parametrize("path", ["/generate_stream", "/v1/completions"])
def test_events_come_before_the_stream_ends(balancer: str, path: str) -> None:
    body = {
        "/generate_stream": {"inputs": "a", "parameters": {"stop": [ENDLESS]}},
        "/v1/completions": {"prompt": "a", "stop": ENDLESS, "max_tokens": 9, "stream": True},
    }[path]
    with httpx.stream("POST", balancer + path, json=body, timeout=SECONDS) as response:
        assert response.status_code == 200
        text = ""
        for part in response.iter_text():
            text += part
            if TOKENS[-1] in text:
                break
        assert all(token in text for token in TOKENS)


def test_an_error_is_passed_on_with_its_headers(balancer: str) -> None:
    response = httpx.post(f"{balancer}/v1/completions", json={"prompt": 3}, timeout=SECONDS)
    assert response.status_code == 400
    assert "prompt" in response.json()["error"]["message"]
    assert response.headers["x-request-id"]


@pytest.mark.parametrize("name", COMMANDS)
def test_a_server_that_is_down_is_passed_over(
    name: str, servers: tuple[RunningServer, RunningServer], tmp_path: Path
) -> None:
    with balancing(name, tmp_path, [free_port(), servers[0].port]) as address:
        for _ in range(6):
            body = {"inputs": "a", "parameters": {"max_new_tokens": 1}}
            assert httpx.post(f"{address}/generate", json=body, timeout=SECONDS).status_code == 200


class BreakingServer(BaseHTTPRequestHandler):
    """Begins each stream with one event and breaks its connection off."""

    generations: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def do_POST(self) -> None:
        self.generations.append(self.path)
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("content-length", "1000")
        self.end_headers()
        self.wfile.write(b"data: {}\n\n")
        self.wfile.flush()
        self.connection.shutdown(socket.SHUT_RDWR)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.mark.parametrize("name", COMMANDS)
def test_a_stream_that_breaks_is_not_generated_again(name: str, tmp_path: Path) -> None:
    BreakingServer.generations.clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), BreakingServer) as breaking:
        thread = threading.Thread(target=breaking.serve_forever)
        thread.start()
        try:
            port = breaking.server_port
            with (
                balancing(name, tmp_path, [port, port]) as address,
                pytest.raises(httpx.TransportError),
                httpx.stream("POST", f"{address}/generate_stream", json={"inputs": "a"}) as stream,
            ):
                assert list(stream.iter_text()) == []
        finally:
            breaking.shutdown()
            thread.join()
    assert BreakingServer.generations == ["/generate_stream"]
