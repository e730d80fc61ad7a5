"""Request bodies: JSON as the standard has it, and TGI's words for what is wrong with it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Coroutine
from email.message import Message
from typing import Any

from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

NOT_JSON = "Expected request with `Content-Type: application/json`"
MALFORMED = "Failed to parse the request body as JSON: "
WRONG_SHAPE = "Failed to deserialize the JSON body into the target type: "
NO_VARIANT = (
    WRONG_SHAPE + "data did not match any variant of untagged enum SagemakerRequest: "
    "`inputs`, `messages` or `prompt` must be there"
)
MAX_REASON_CHARACTERS = 500


class BodyError(HTTPException):
    """A body that no route can read. Answered in plain text, as TGI does."""

    def __init__(self, status_code: int, reason: str) -> None:
        super().__init__(status_code, reason[:MAX_REASON_CHARACTERS])


class StrictJsonRequest(Request):
    """A request whose JSON is parsed strictly: no NaN, no doubled key, UTF-8 only."""

    async def json(self) -> dict[str, Any]:
        """The parsed body, an object. Raises BodyError."""
        body = await self.body()
        try:
            value = json.loads(
                body.decode(), object_pairs_hook=_without_doubles, parse_constant=_no_constant
            )
        except RecursionError:
            raise BodyError(400, MALFORMED + "nested too deeply") from None
        except ValueError as error:
            raise BodyError(400, MALFORMED + _reason(error)) from None
        if not isinstance(value, dict):
            raise BodyError(422, WRONG_SHAPE + "expected an object")
        return value


class StrictJsonRoute(APIRoute):
    """A route that reads its body by StrictJsonRequest."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Wrap the request before FastAPI reads it."""
        handle = super().get_route_handler()

        async def handle_strictly(request: Request) -> Response:
            return await handle(StrictJsonRequest(request.scope, request.receive))

        return handle_strictly


def body_error(request: Request, error: RequestValidationError) -> BodyError:
    """What is wrong with a body that is not JSON, is empty, or has the wrong shape."""
    first = error.errors()[0]
    if not is_json(request):
        return BodyError(415, NOT_JSON)
    if first["type"] == "missing" and first["loc"] == ("body",):
        return BodyError(400, MALFORMED + "it is empty")
    return BodyError(422, WRONG_SHAPE + _where(first) + _what(first))


def is_json(request: Request) -> bool:
    """Whether a request says that its body is JSON."""
    header = Message()
    header["content-type"] = request.headers.get("content-type", "text/plain")
    subtype = header.get_content_subtype()
    return header.get_content_maintype() == "application" and (
        subtype == "json" or subtype.endswith("+json")
    )


def _where(detail: dict[str, Any]) -> str:
    """The path of the faulty value, as far as the faulty field's parent."""
    path = [str(part) for part in detail["loc"][1:]]
    if detail["type"] in ("missing", "extra_forbidden"):
        path = path[:-1]
    return ".".join(path) + ": " if path else ""


def _what(detail: dict[str, Any]) -> str:
    if detail["type"] == "missing":
        return f"missing field `{detail['loc'][-1]}`"
    if detail["type"] == "extra_forbidden":
        return f"unknown field `{detail['loc'][-1]}`"
    return str(detail["msg"])


def _reason(error: ValueError) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg} at line {error.lineno} column {error.colno}"
    if isinstance(error, UnicodeDecodeError):
        return f"not UTF-8 at byte {error.start}"
    return str(error)


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        counts = Counter(name for name, _ in pairs)
        raise BodyError(422, f"{WRONG_SHAPE}duplicate field `{counts.most_common(1)[0][0]}`")
    return fields


def _no_constant(word: str) -> float:
    raise ValueError(f"{word} is not JSON")
