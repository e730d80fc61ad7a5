"""Bodies that are too large."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

TOO_LARGE = "Failed to buffer the request body: length limit exceeded"


class PayloadTooLarge(HTTPException):
    """A body without a stated length grew too large while it was read."""

    def __init__(self) -> None:
        super().__init__(status_code=413, detail=TOO_LARGE)


class PayloadLimit:
    """Answers 413 to a body of more than `limit` bytes, before it is read where it says so."""

    def __init__(self, app: ASGIApp, limit: int) -> None:
        self.app = app
        self.limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
        elif self._stated_length(scope) > self.limit:
            await PlainTextResponse(TOO_LARGE, 413)(scope, receive, send)
        else:
            await self.app(scope, self._counted(receive), send)

    def _stated_length(self, scope: Scope) -> int:
        text = Headers(scope=scope).get("content-length", "")
        return int(text) if text.isascii() and text.isdigit() else 0

    def _counted(self, receive: Receive) -> Receive:
        length = 0

        async def counted() -> Message:
            nonlocal length
            message = await receive()
            length += len(message.get("body", b""))
            if length > self.limit:
                raise PayloadTooLarge
            return message

        return counted
