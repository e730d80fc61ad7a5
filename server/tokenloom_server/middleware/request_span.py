"""A span around each request that may run the model."""

from __future__ import annotations

from opentelemetry.trace import Span, Status, StatusCode
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tokenloom_server.tracing import Tracing


class RequestSpan:
    """Traces what is posted; to ask for health or metrics leaves no span."""

    def __init__(self, app: ASGIApp, tracing: Tracing) -> None:
        self.app = app
        self._tracing = tracing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await self.app(scope, receive, send)
            return
        with self._tracing.request("POST", scope["path"], Headers(scope=scope)) as span:

            async def note_status(message: Message) -> None:
                if message["type"] == "http.response.start":
                    _note_status(span, scope, message["status"])
                await send(message)

            await self.app(scope, receive, note_status)


def _note_status(span: Span, scope: Scope, status: int) -> None:
    span.set_attribute("http.response.status_code", status)
    if (route := scope.get("route")) is not None:
        span.set_attribute("http.route", route.path)
        span.update_name(f"POST {route.path}")
    if status >= 500:
        span.set_status(Status(StatusCode.ERROR))
