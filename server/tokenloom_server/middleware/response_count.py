"""Counts HTTP responses."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tokenloom_server.http_metrics import HttpMetrics

METHODS = frozenset({"GET", "POST", "HEAD", "OPTIONS"})
OTHER = "other"
"""Label of methods and paths that no route has: clients choose them, so they have no labels."""


class ResponseCount:
    """Counts each response once, by method, route and status."""

    def __init__(self, app: ASGIApp, metrics: HttpMetrics) -> None:
        self.app = app
        self._responses = metrics.responses

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def count(message: Message) -> None:
            if message["type"] == "http.response.start":
                method = scope["method"] if scope["method"] in METHODS else OTHER
                route = getattr(scope.get("route"), "path", OTHER)
                self._responses.labels(method, route, message["status"]).inc()
            await send(message)

        await self.app(scope, receive, count)
