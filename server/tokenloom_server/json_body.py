"""TGI's words for what is wrong with a request's body."""

from __future__ import annotations

from email.message import Message
from typing import Any

from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request

NOT_JSON = "Expected request with `Content-Type: application/json`"
MALFORMED = "Failed to parse the request body as JSON: "
WRONG_SHAPE = "Failed to deserialize the JSON body into the target type: "
NO_VARIANT = (
    WRONG_SHAPE + "data did not match any variant of untagged enum SagemakerRequest: "
    "`inputs`, `messages` or `prompt` must be there"
)
MAX_REASON_CHARACTERS = 500
MAX_SHOWN_CODING = 40


class BodyError(HTTPException):
    """A body that no route can read. Answered in plain text, as TGI does."""

    def __init__(self, status_code: int, reason: str) -> None:
        super().__init__(status_code, reason[:MAX_REASON_CHARACTERS])


def body_error(request: Request, error: RequestValidationError) -> BodyError:
    """What is wrong with a body that is not JSON, is empty, or has the wrong shape."""
    first = error.errors()[0]
    if not is_json(request):
        return BodyError(415, NOT_JSON)
    if first["type"] == "missing" and first["loc"] == ("body",):
        return BodyError(400, MALFORMED + "it is empty")
    return BodyError(422, WRONG_SHAPE + _where(first) + _what(first))


def check_coding(request: Request) -> None:
    """Raise BodyError for a body that is compressed, or says so."""
    coding = request.headers.get("content-encoding", "identity")
    if coding.lower() != "identity":
        shown = coding[:MAX_SHOWN_CODING]
        raise BodyError(
            415, f"`Content-Encoding: {shown}` is not supported: send the body as it is"
        )


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
