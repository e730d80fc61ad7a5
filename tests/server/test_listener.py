from __future__ import annotations

import errno
import socket

import pytest

from tokenloom_server.listener import PortError, bind, url


def test_a_bound_port_refuses_until_it_listens() -> None:
    with bind("127.0.0.1", 0) as listener:
        address = listener.getsockname()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address, timeout=5)
        listener.listen()
        socket.create_connection(address, timeout=5).close()


def test_a_port_that_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(PortError) as raised:
            bind("127.0.0.1", port)
    assert str(raised.value) == f"cannot listen on 127.0.0.1 port {port}: Address already in use"


def test_a_port_for_privileged_users_alone() -> None:
    error = PortError("0.0.0.0", 80, PermissionError(errno.EACCES, ""))
    assert str(error) == (
        "cannot listen on 0.0.0.0 port 80: Permission denied; take a port of 1024 or above "
        "(--port, PORT), or give CAP_NET_BIND_SERVICE"
    )


def test_an_address_that_is_not_ours() -> None:
    with pytest.raises(PortError, match="cannot listen on 192.0.2.1 port 0: "):
        bind("192.0.2.1", 0)


@pytest.mark.parametrize(
    ("hostname", "host"), [("0.0.0.0", "127.0.0.1"), ("127.0.0.2", "127.0.0.2")]
)
def test_a_url_that_can_be_opened(hostname: str, host: str) -> None:
    with bind(hostname, 0) as listener:
        assert url(listener) == f"http://{host}:{listener.getsockname()[1]}"


def test_small_packets_are_sent_at_once() -> None:
    with bind("127.0.0.1", 0) as listener:
        assert listener.proto == socket.IPPROTO_TCP
