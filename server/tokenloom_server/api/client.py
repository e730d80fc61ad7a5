"""Clients, as far as the server tells them apart."""

from __future__ import annotations

from starlette.types import Scope


def client_address(scope: Scope) -> str:
    """Return the address of a connection's peer; empty if it has none, as in process.

    Behind a proxy on this machine it is the client's that `X-Forwarded-For` names: uvicorn takes
    that header from the addresses of `FORWARDED_ALLOW_IPS`.
    """
    peer = scope.get("client")
    return "" if peer is None else str(peer[0])
