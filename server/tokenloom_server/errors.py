"""Which status and which body each error gets. The one place that knows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Match, Mount
from typing_extensions import TypedDict

from tokenloom_engine.request_id import request_id
from tokenloom_router.errors import (
    ConstraintError,
    GenerationError,
    IncompleteGenerationError,
    OverloadedError,
    RequestError,
    UnavailableError,
    ValidationError,
)
from tokenloom_server.json_body import BodyError, body_error
from tokenloom_server.middleware.payload_limit import PayloadTooLarge
from tokenloom_server.middleware.request_id import HEADER as REQUEST_ID

STATUSES: dict[type[RequestError], int] = {
    ValidationError: 422,
    ConstraintError: 422,
    GenerationError: 424,
    OverloadedError: 429,
    IncompleteGenerationError: 500,
    UnavailableError: 503,
    RequestError: 500,
}
RETRY_AFTER_SECONDS = 5
METHODS = ["DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT"]
FILE_METHODS = ["GET", "HEAD"]
"""Of what is mounted: the documentation's files."""


class ErrorBody(TypedDict):
    """The body of an error: its message, and TGI's word for its kind."""

    error: str
    error_type: str


def error_body(error: RequestError) -> bytes:
    """The JSON of an error, also as the last event of a stream."""
    return json_error(str(error), error.error_type)


def json_error(message: str, error_type: str) -> bytes:
    """Encode an error's message and type. Halves of surrogate pairs in it are replaced by `?`."""
    message = message.encode(errors="replace").decode()
    return msgspec.json.encode({"error": message, "error_type": error_type})


def unhealthy() -> Response:
    """The answer of a server that cannot generate."""
    return _json_response(503, json_error("unhealthy", "healthcheck"))


def _json_response(status: int, body: bytes) -> Response:
    headers = {"retry-after": str(RETRY_AFTER_SECONDS)} if status == 503 else None
    return Response(body, status, headers, "application/json")


async def _on_request_error(_request: Request, error: RequestError) -> Response:
    status = next(STATUSES[kind] for kind in type(error).__mro__ if kind in STATUSES)
    return _json_response(status, error_body(error))


async def _on_http_exception(request: Request, error: HTTPException) -> Response:
    if isinstance(error, BodyError | PayloadTooLarge):
        return PlainTextResponse(error.detail.encode(errors="replace"), error.status_code)
    if error.status_code == 405:
        return Response(status_code=405, headers={"allow": ", ".join(_allowed_methods(request))})
    return Response(status_code=error.status_code, headers=error.headers)


def _allowed_methods(request: Request) -> list[str]:
    """Return the methods of all routes at the request's path; Starlette names the first one's."""
    routes = [route for route in request.app.routes if not isinstance(route, Mount)]
    allowed = [
        method
        for method in METHODS
        if any(
            route.matches({**request.scope, "method": method})[0] is Match.FULL for route in routes
        )
    ]
    return allowed or FILE_METHODS


async def _on_invalid_body(request: Request, error: RequestValidationError) -> Response:
    return await _on_http_exception(request, body_error(request, error))


async def _on_disconnect(_request: Request, _error: ClientDisconnect) -> Response:
    return Response(status_code=400)  # for nobody: the client left before its body was there


async def _on_bug(_request: Request, _error: Exception) -> Response:
    response = _json_response(500, json_error("Internal server error", "internal"))
    if id := request_id.get():  # this response does not pass through the middleware
        response.headers[REQUEST_ID] = id
    return response


EXCEPTION_HANDLERS: dict[int | type[Exception], Callable[[Request, Any], Any]] = {
    RequestError: _on_request_error,
    HTTPException: _on_http_exception,
    RequestValidationError: _on_invalid_body,
    ClientDisconnect: _on_disconnect,
    Exception: _on_bug,
}
