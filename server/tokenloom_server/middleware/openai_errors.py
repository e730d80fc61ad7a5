"""Errors on OpenAI's paths that no route of its dialect made."""

from __future__ import annotations

from collections.abc import Set
from http import HTTPStatus

import msgspec
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tokenloom_server.api.openai.errors import CODES, Fault

FOLDER = "/v1/"
TYPES = {401: "authentication_error", 404: "invalid_request_error", 429: "rate_limit_error"}


class OpenAIErrors:
    """Gives OpenAI's form to errors under /v1/ that do not have it.

    They are those of a missing key, a body that is too large, a path that does not exist, a bug.
    """

    def __init__(self, app: ASGIApp, without: Set[str] = frozenset()) -> None:
        """`without`: paths under /v1/ of another dialect."""
        self.app = app
        self._without = without

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if (
            scope["type"] != "http"
            or not scope["path"].startswith(FOLDER)
            or scope["path"] in self._without
        ):
            await self.app(scope, receive, send)
            return
        rewriter = _Rewriter(send)
        try:
            await self.app(scope, receive, rewriter.send)
        except Exception:  # a bug: it is logged outside, where it goes on to
            if not rewriter.has_begun:
                await Fault(500, "Internal server error", "server_error").response()(
                    scope, receive, send
                )
            raise


class _Rewriter:
    """Holds an error back until its body is there."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._start: Message | None = None
        self._body = b""
        self.has_begun = False
        """Whether a response is on its way."""

    async def send(self, message: Message) -> None:
        """Pass a message on, or another one in its place."""
        self.has_begun = True
        if message["type"] == "http.response.start" and message["status"] >= 400:
            self._start = message
        elif self._start is None:
            await self._send(message)
        else:
            self._body += message.get("body", b"")
            if not message.get("more_body", False):
                await self._finish(self._start)

    async def _finish(self, start: Message) -> None:
        body = _in_form(start["status"], self._body)
        headers = MutableHeaders(raw=list(start["headers"]))
        headers["content-type"] = "application/json"
        headers["content-length"] = str(len(body))
        await self._send({**start, "headers": headers.raw})
        await self._send({"type": "http.response.body", "body": body})


def _in_form(status: int, body: bytes) -> bytes:
    """The body if it has the form already; else its words, or the status' own, in that form."""
    try:
        value = msgspec.json.decode(body)
    except msgspec.DecodeError:
        value = body.decode(errors="replace")
    error = value.get("error") if isinstance(value, dict) else value
    if isinstance(error, dict):
        return body
    message = error if isinstance(error, str) and error else HTTPStatus(status).phrase
    default = "server_error" if status >= 500 else "invalid_request_error"
    kind = TYPES.get(status, default)
    return Fault(status, message, kind, code=CODES.get(status)).json
