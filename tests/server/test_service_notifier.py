"""Messages to a service manager, as they arrive at its socket."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from tests.server.test_serve import rest, started, url_of

WATCHDOG = "WATCHDOG=1"
WATCHDOG_USEC = "400000"


class Notifications:
    """A service manager's socket."""

    def __init__(self, address: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(address)
        self._socket.settimeout(60)

    def receive(self) -> str:
        return self._socket.recv(4096).decode()

    def receive_until(self, start: str) -> list[str]:
        """All up to the first that starts so. Those before it feed the watchdog."""
        messages = [self.receive()]
        while not messages[-1].startswith(start):
            assert messages[-1] == WATCHDOG
            messages.append(self.receive())
        return messages

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def notifications(tmp_path: Path) -> Iterator[Notifications]:
    notifications = Notifications(str(tmp_path / "notify"))
    yield notifications
    notifications.close()


def test_a_service_from_start_to_end(
    tokenizer_file: Path, tmp_path: Path, notifications: Notifications
) -> None:
    given = {"notify_socket": str(tmp_path / "notify"), "watchdog_usec": WATCHDOG_USEC}
    with started(tokenizer_file, **given, engine_stall_timeout="2") as process:
        assert notifications.receive() == "STATUS=Loading scripted"
        url = url_of(process)
        assert notifications.receive() == f"READY=1\nSTATUS=scripted is served at {url}"
        for _ in range(3):
            assert notifications.receive() == WATCHDOG

        (engine,) = (
            child
            for child in psutil.Process(process.pid).children()
            if "scripted_engine" in " ".join(child.cmdline())
        )
        assert not {"NOTIFY_SOCKET", "WATCHDOG_USEC"} & engine.environ().keys()
        engine.send_signal(signal.SIGSTOP)
        *fed, status = notifications.receive_until("STATUS=")
        assert len(fed) <= 5, "of 20 in the time after which a silent engine is killed"
        assert status == "STATUS=The engine is starting again"
        assert notifications.receive_until("STATUS=")[-1] == f"STATUS=scripted is served at {url}"
        notifications.receive_until(WATCHDOG)

        process.send_signal(signal.SIGTERM)
        stopping = notifications.receive_until("STOPPING=1")[-1]
        assert stopping == "STOPPING=1\nSTATUS=Stopping: running requests get 90 s to finish"
        exit_status, written = rest(process)
    assert (exit_status, "Traceback" in written) == (0, False)


def test_one_of_two_engines_feeds_the_watchdog(
    tokenizer_file: Path, tmp_path: Path, notifications: Notifications
) -> None:
    given = {"notify_socket": str(tmp_path / "notify"), "watchdog_usec": WATCHDOG_USEC}
    with started(tokenizer_file, **given, engine_stall_timeout="2", replicas="2") as process:
        url = url_of(process)
        notifications.receive()
        notifications.receive()
        engine = next(
            child
            for child in psutil.Process(process.pid).children()
            if "scripted_engine" in " ".join(child.cmdline())
        )
        engine.send_signal(signal.SIGSTOP)
        *fed, status = notifications.receive_until("STATUS=")
        assert len(fed) >= 10, "for 2 s, ten times a second"
        assert status == f"STATUS=scripted is served at {url}, with 1 of 2 replicas"
        assert notifications.receive_until("STATUS=")[-1] == f"STATUS=scripted is served at {url}"
        process.send_signal(signal.SIGTERM)
        rest(process)


def test_a_model_that_cannot_be_loaded(tokenizer_file: Path) -> None:
    name = f"tokenloom-{os.getpid()}"
    with (
        closing(Notifications(f"\0{name}")) as notifications,
        started(tokenizer_file, model_id="broken", notify_socket=f"@{name}") as process,
    ):
        assert notifications.receive() == "STATUS=Loading broken"
        assert notifications.receive() == "STATUS=the model is broken"
        assert rest(process)[0] == 1


def test_without_a_watchdog_and_without_a_listener(tokenizer_file: Path, tmp_path: Path) -> None:
    """A watchdog of another process is not fed, and what cannot be sent ends nothing."""
    given = {"notify_socket": str(tmp_path / "absent"), "watchdog_pid": "1"}
    with started(tokenizer_file, **given, watchdog_usec=WATCHDOG_USEC) as process:
        url_of(process)
        process.send_signal(signal.SIGTERM)
        status, written = rest(process)
    assert (status, "Traceback" in written) == (0, False)
    assert "The service manager cannot be notified: " in written
