"""A line of the access log for each request."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tokenloom_server.access_log import AccessLog


class AccessLine:
    """Logs each request once, whatever answers it."""

    def __init__(self, app: ASGIApp, access_log: AccessLog) -> None:
        self.app = app
        self._access_log = access_log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        with self._access_log.request(scope) as record:

            async def note_status(message: Message) -> None:
                if message["type"] == "http.response.start":
                    record.status = message["status"]
                await send(message)

            await self.app(scope, receive, note_status)
