"""The socket that the server will listen on."""

from __future__ import annotations

import errno
import os
import socket

EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""Addresses that listen on all interfaces, and where a client on this machine finds them."""


class PortError(Exception):
    """The address cannot be listened on. The message is one line."""

    def __init__(self, hostname: str, port: int, error: OSError) -> None:
        reason = os.strerror(error.errno) if error.errno else str(error)
        if error.errno == errno.EACCES:
            reason += "; take a port of 1024 or above (--port, PORT), or give CAP_NET_BIND_SERVICE"
        super().__init__(f"cannot listen on {hostname} port {port}: {reason}")


def bind(hostname: str, port: int) -> socket.socket:
    """Take the port, but do not listen yet: connections are refused until the model is loaded.

    Raises PortError at once if another program has it.
    """
    family = socket.AF_INET6 if ":" in hostname else socket.AF_INET
    # Named as TCP: asyncio sends small packets at once only where a socket says that it is.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((hostname, port))
    except OSError as error:
        listener.close()
        raise PortError(hostname, port, error) from error
    return listener


def url(listener: socket.socket) -> str:
    """An address that a client on this machine can use."""
    host, port = listener.getsockname()[:2]
    local = EVERYWHERE.get(host, str(host))
    return f"http://[{local}]:{port}" if ":" in local else f"http://{local}:{port}"
