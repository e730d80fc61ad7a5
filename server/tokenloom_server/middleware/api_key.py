"""Who may generate."""

from __future__ import annotations

import secrets
from collections.abc import Set

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

OPEN_PATHS = frozenset(
    {
        "/health",
        "/ping",
        "/livez",
        "/readyz",
        "/info",
        "/metrics",
        "/docs",
        "/api-doc/openapi.json",
    }
)
OPEN_FOLDER = "/docs/"
SAFE_METHODS = frozenset({"GET", "HEAD"})


class ApiKey:
    """Answers 401 with an empty body unless the request bears the key.

    Every path needs it but the few that are named open here, so that a new route is closed until
    somebody opens it.
    """

    def __init__(self, app: ASGIApp, api_key: str, open_paths: Set[str] = frozenset()) -> None:
        """`open_paths`: further paths that need no key to be read."""
        self.app = app
        self._open_paths = OPEN_PATHS | open_paths
        self._expected = f"Bearer {api_key}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or self._is_open(scope) or self._has_key(scope):
            await self.app(scope, receive, send)
        else:
            await Response(status_code=401)(scope, receive, send)

    def _has_key(self, scope: Scope) -> bool:
        given = Headers(scope=scope).get("authorization", "")
        return secrets.compare_digest(given.encode("latin-1"), self._expected)

    def _is_open(self, scope: Scope) -> bool:
        if scope["method"] not in SAFE_METHODS:
            return False
        path = scope["path"]
        if path == "/" or path in self._open_paths:
            return True
        return path.startswith(OPEN_FOLDER) and ".." not in path
