from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.server.running import running
from tokenloom_server.cli import main
from tokenloom_server.healthcheck import failure, running_commands, server_flags

PYTHON = "/opt/tokenloom/bin/python"


@pytest.mark.parametrize(
    ("command", "flags"),
    [
        ([PYTHON, "/opt/tokenloom/bin/tokenloom", "serve"], []),
        ([PYTHON, "/opt/tokenloom/bin/tokenloom", "serve", "--port", "81"], ["--port", "81"]),
        (["tokenloom", "serve", "-p81"], ["-p81"]),
        ([PYTHON, "/usr/bin/text-generation-launcher", "--port=81"], ["--port=81"]),
        (["/sbin/docker-init", "--", "tokenloom-entrypoint", "--port", "81"], None),
        ([PYTHON, "/opt/tokenloom/bin/tokenloom", "healthcheck"], None),
        ([PYTHON, "/opt/tokenloom/bin/tokenloom"], None),
        ([PYTHON], None),
        ([], None),
    ],
)
def test_the_flags_of_a_server(command: list[str], flags: list[str] | None) -> None:
    assert server_flags([["sh"], command]) == flags


def test_the_first_server_counts() -> None:
    commands = [["tokenloom", "serve", "-p", "1"], ["tokenloom", "serve", "-p", "2"]]
    assert server_flags(commands) == ["-p", "1"]


def test_a_process_is_seen() -> None:
    marked = [sys.executable, "-c", "input()", "tokenloom", "serve"]
    with subprocess.Popen(marked, stdin=subprocess.PIPE) as process:
        assert marked in running_commands()
        process.communicate(b"\n")


def test_a_server_that_takes_requests(tokenizer_file: Path) -> None:
    with running(tokenizer_file) as server:
        assert failure("127.0.0.1", server.port) is None
        assert failure("0.0.0.0", server.port) is None
    assert "no answer on 127.0.0.1" in str(failure("127.0.0.1", server.port))


@pytest.mark.parametrize("answer", [b"HTTP/1.1 503 Busy\r\n\r\n", b"nonsense\r\n\r\n", b""])
def test_an_answer_that_is_not_healthy(answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        child = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, repr(answer)], stdin=listener.fileno()
        )
        try:
            assert failure("127.0.0.1", port) is not None
        finally:
            child.wait()


PROGRAM = """
import ast, socket, sys
with socket.socket(fileno=0).accept()[0] as connection:
    connection.recv(1000)
    connection.sendall(ast.literal_eval(sys.argv[1]))
"""


@pytest.mark.parametrize("flag", [True, False])
def test_the_command(
    tokenizer_file: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    flag: bool,
) -> None:
    flags = ["--hostname", "127.0.0.1"]

    def commands() -> list[list[str]]:
        return [["tokenloom", "serve", *flags]]

    monkeypatch.setattr("tokenloom_server.healthcheck.running_commands", commands)
    with running(tokenizer_file) as server:
        if flag:
            flags += ["--port", str(server.port)]
        else:
            monkeypatch.setenv("AIP_HTTP_PORT", str(server.port))
        assert main(["healthcheck"]) == 0
    assert main(["healthcheck"]) == 1
    assert "tokenloom healthcheck: no answer on 127.0.0.1 port" in capsys.readouterr().err
    monkeypatch.setattr("tokenloom_server.healthcheck.running_commands", lambda: [["sh"]])
    assert main(["healthcheck"]) == 1
    assert "no server runs here" in capsys.readouterr().err
