"""Counts HTTP responses."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tokenloom_server.http_labels import method_label, route_label
from tokenloom_server.http_metrics import HttpMetrics


class ResponseCount:
    """Counts each response once, by method, route and status."""

    def __init__(self, app: ASGIApp, metrics: HttpMetrics) -> None:
        self.app = app
        self._responses = metrics.responses

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        has_begun = False

        def count(status: int) -> None:
            self._responses.labels(method_label(scope), route_label(scope), status).inc()

        async def send_counted(message: Message) -> None:
            nonlocal has_begun
            if message["type"] == "http.response.start":
                has_begun = True
                count(message["status"])
            await send(message)

        try:
            await self.app(scope, receive, send_counted)
        except Exception:  # a bug: it is answered outside, where it goes on to
            if not has_begun:
                count(500)
            raise
