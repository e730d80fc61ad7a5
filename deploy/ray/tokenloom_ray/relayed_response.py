"""A replica's response on its way to the client."""

from __future__ import annotations

import logging
from http import HTTPStatus
from typing import TYPE_CHECKING

from starlette.datastructures import MutableHeaders
from starlette.types import Message, Send

from tokenloom_ray.forwarded_request import REPLICA_ID
from tokenloom_router.errors import GenerationError, UnavailableError
from tokenloom_server.api.openai.errors import Fault, Words
from tokenloom_server.errors import error_body
from tokenloom_server.middleware.openai_errors import FOLDER as OPENAI_FOLDER
from tokenloom_server.middleware.request_id import HEADER as REQUEST_ID

if TYPE_CHECKING:
    from ray.exceptions import RayError

RETRIED = frozenset(
    {
        HTTPStatus.FAILED_DEPENDENCY,  # the engine failed
        HTTPStatus.INTERNAL_SERVER_ERROR,  # the same in OpenAI's dialect
        HTTPStatus.TOO_MANY_REQUESTS,  # no permit is free
        HTTPStatus.SERVICE_UNAVAILABLE,  # the engine starts again
    }
)
"""Statuses after which another replica may succeed."""

logger = logging.getLogger(__name__)


class RelayedResponse:
    """Passes the messages of a replica on, or holds back a failure that may be repeated."""

    def __init__(self, path: str, send: Send, *, is_last: bool) -> None:
        """`is_last`: no other replica will be tried."""
        self._path = path
        self._send = send
        self._is_last = is_last
        self._start: Message | None = None
        """Held back until the body begins."""
        self._has_begun = False
        self._is_stream = False
        self._is_complete = False
        self.is_refused = False
        """True once the replica has failed with nothing sent to the client."""
        self.replica: str | None = None

    async def relay(self, message: Message) -> None:
        """Send a message to the client unless it belongs to a failure."""
        if message["type"] == "http.response.start":
            self._begin(message)
        elif not self.is_refused:
            if self._start is not None:
                self._has_begun = True
                await self._send(self._start)
                self._start = None
            self._is_complete = not message.get("more_body", False)
            await self._send(message)

    def _begin(self, start: Message) -> None:
        headers = MutableHeaders(scope=start)
        self.replica = headers.get(REPLICA_ID)
        self._is_stream = headers.get("content-type", "").startswith("text/event-stream")
        self.is_refused = start["status"] in RETRIED and not self._is_last
        del headers[REQUEST_ID]  # the proxy of Serve adds it again
        self._start = start

    async def break_off(self, error: RayError) -> None:
        """Hold back the end of the replica, or end the response with an error event.

        Raises UnavailableError if nothing was sent, and `error` if no event can follow.
        """
        if self._is_complete or self.is_refused:
            return
        logger.warning("Replica failed: %s", str(error).partition("\n")[0])
        if not self._has_begun and not self._is_last:
            self.is_refused = True
        elif not self._has_begun:
            raise UnavailableError("No replica responds") from error
        elif self._is_stream:
            await self._send({"type": "http.response.body", "body": self._last_event()})
        else:
            raise error

    def _last_event(self) -> bytes:
        error = GenerationError("the replica ended")
        is_openai = self._path.startswith(OPENAI_FOLDER)
        data = Fault.of(error, Words()).json if is_openai else error_body(error)
        return b"data: " + data + b"\n\n"
