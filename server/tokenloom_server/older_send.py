"""The sending side of a request of HTTP/1.0, which has no chunks."""

from __future__ import annotations

from uvicorn._types import ASGISendEvent
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle


class OlderSend:
    """Sends a response to an HTTP/1.0 client: without a length it ends with the connection."""

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle
        self._send = cycle.send
        self._has_length = True

    async def __call__(self, message: ASGISendEvent) -> None:
        """Send a message of the application as it is, and never as a chunk."""
        cycle = self._cycle
        if message["type"] == "http.response.start":
            names = {name.lower() for name, _ in message.get("headers", [])}
            if b"content-length" not in names:
                self._has_length = cycle.chunked_encoding = False
        elif message["type"] == "http.response.body" and not self._has_length:
            cycle.expected_content_length = len(message.get("body", b""))
        await self._send(message)
