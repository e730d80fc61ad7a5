"""The HTTP response that carries server-sent events."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping

from sse_starlette.event import ServerSentEvent
from sse_starlette.sse import EventSourceResponse

KEEP_ALIVE_SECONDS = 15
FOREVER_SECONDS = 1e9
"""Streams do not end by themselves when the server is told to stop: the server decides when."""


class EventStream(EventSourceResponse):
    """Sends chunks of events, and a comment now and then while there are none."""

    def __init__(self, chunks: AsyncIterator[bytes], headers: Mapping[str, str]) -> None:
        super().__init__(
            chunks,
            headers={
                **headers,
                "cache-control": "no-cache",
                "content-type": "text/event-stream",
            },
            ping=KEEP_ALIVE_SECONDS,
            ping_message_factory=_comment,
            shutdown_grace_period=FOREVER_SECONDS,
        )
        # Whether the connection is kept is for the HTTP server to say.
        del self.headers["connection"]


def _comment() -> ServerSentEvent:
    return ServerSentEvent(comment="", sep="\n")
