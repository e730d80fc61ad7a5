"""The name of a request, for whoever follows it through several servers' logs."""

from __future__ import annotations

import re
import uuid

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tokenloom_engine.request_id import request_id

HEADER = "x-request-id"
_FORM = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}")


class RequestId:
    """Gives each response an x-request-id: the request's, if it is a name, or a new one.

    Log lines about the request carry it. Nothing else uses it: two requests may have the same.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        given = Headers(scope=scope).get(HEADER, "")
        name = given if _FORM.fullmatch(given) else uuid.uuid4().hex

        request_id.set(name)  # for good: uvicorn logs bugs in the same task, which has one request

        async def send_named(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).append(HEADER, name)
            await send(message)

        await self.app(scope, receive, send_named)
