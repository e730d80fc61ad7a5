"""One call of an ASGI application inside this process."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator

from starlette.types import ASGIApp, Message

from tokenloom_ray.forwarded_request import ForwardedRequest
from tokenloom_server.disconnect import never_disconnected

logger = logging.getLogger(__name__)


async def call_application(
    app: ASGIApp, request: ForwardedRequest
) -> AsyncGenerator[list[Message], None]:
    """Yield the messages that the application sends, as many at a time as there are.

    Closing or cancelling the iterator cancels the application.
    """
    sent: asyncio.Queue[Message | None] = asyncio.Queue()
    has_received = False

    async def receive() -> Message:
        nonlocal has_received
        if has_received:
            return await never_disconnected()
        has_received = True
        return {"type": "http.request", "body": request.body, "more_body": False}

    call = asyncio.ensure_future(app(dict(request.scope), receive, sent.put))
    call.add_done_callback(lambda _: sent.put_nowait(None))
    try:
        is_over = False
        while not is_over:
            messages = [await sent.get()]
            while not sent.empty():
                messages.append(sent.get_nowait())
            is_over = messages[-1] is None
            if any(messages):
                yield [message for message in messages if message is not None]
    finally:
        call.cancel()
        await asyncio.wait({call})
        if not call.cancelled() and (error := call.exception()) is not None:
            logger.error("Exception in the application", exc_info=error)
