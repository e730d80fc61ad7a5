"""What is wrong with a request, in OpenAI's words."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from typing_extensions import TypedDict

from tokenloom_router.errors import (
    ConstraintError,
    OverloadedError,
    PromptError,
    RequestError,
    TooLongError,
    TooLongPromptError,
    UnavailableError,
    ValidationError,
)
from tokenloom_server.api.generate_request import MAX_SHOWN_CHARACTERS
from tokenloom_server.errors import RETRY_AFTER_SECONDS
from tokenloom_server.json_body import body_error
from tokenloom_server.tools.call_grammar import remark_on_tool
from tokenloom_server.tools.tool import ToolChoice

INVALID = "invalid_request_error"
SERVER = "server_error"
CODES = {401: "invalid_api_key", 404: "not_found", 405: "method_not_allowed", 413: "too_large"}
"""By status, of what is refused before anybody looks into it."""
_TAG_PATH = re.compile(r"(?<=is not valid: )format\.[\w.\[\]]+: ")
_WARNED_PATH = re.compile(r"^format\.[\w.\[\]]+: ")
_NAME = re.compile(r"`([^`]+)`")
_PREFIX = "Failed to deserialize the JSON body into the target type: "


class FaultBody(TypedDict):
    """What is wrong. `param` is the field at fault, where there is one."""

    message: str
    type: str
    param: str | None
    code: str | None


class OpenAIErrorBody(TypedDict):
    """The body of an error."""

    error: FaultBody


class ModelNotFoundError(ValidationError):
    """The request names a model that is not served."""


@dataclass(frozen=True, slots=True)
class Words:
    """What a route calls the fields that the router has other names for."""

    names: Mapping[str, str] = field(default_factory=dict)
    """From the router's name to the route's."""
    constraint: str = "response_format"
    """The field that the constraint came from."""
    tools: ToolChoice = field(default_factory=ToolChoice)
    """The tools whose schemas are in the constraint."""
    has_tag: bool = False
    """Whether it is a structural tag of the client's, who then knows the paths in it."""

    def translated(self, message: str) -> str:
        """A message of the router's, with the route's names in it."""
        names = {"grammar": self.constraint, **self.names}
        message = _NAME.sub(lambda match: f"`{names.get(match[1], match[1])}`", message)
        if (remark := remark_on_tool(message, self.tools)) is not None:
            return f"{remark.place} is not valid: {remark.text}"
        if message.startswith("grammar "):
            message = message if self.has_tag else _TAG_PATH.sub("", message)
            message = f"`{self.constraint}`" + message.removeprefix("grammar")
        return message

    def warning(self, message: str) -> str:
        """A warning of what a schema lost, with the route's names in it."""
        if (remark := remark_on_tool(message, self.tools)) is not None:
            return f"{remark.place}: {remark.text}"
        return message if self.has_tag else _WARNED_PATH.sub("", message)


@dataclass(frozen=True, slots=True)
class Fault:
    """An error as OpenAI tells it."""

    status: int
    message: str
    type: str = INVALID
    param: str | None = None
    code: str | None = None

    @classmethod
    def of(cls, error: RequestError, words: Words) -> Fault:
        """What became of a request that was read."""
        match error:
            case PromptError(index=index, cause=cause):
                fault = cls.of(cause, words)
                message = f"prompt {index}: {fault.message}"
                return cls(fault.status, message, fault.type, fault.param, fault.code)
            case ModelNotFoundError():
                return cls(404, error.reason, INVALID, "model", "model_not_found")
            case TooLongError():
                return cls._too_long(error, words)
            case TooLongPromptError():
                return cls._too_long_prompt(error, words)
            case ValidationError():
                message = words.translated(error.reason)
                name = _NAME.search(message)
                param = name[1] if name else None
                return cls(400, message, INVALID, param, "invalid_value")
            case ConstraintError():
                param = words.tools.field or words.constraint
                return cls(400, str(error), INVALID, param, "constraint_failed")
            case OverloadedError():
                message = f"{error}: no request can be taken now, try again later"
                return cls(429, message, "rate_limit_error", code="rate_limit_exceeded")
            case UnavailableError():
                return cls(503, str(error), SERVER, code="unavailable")
            case _:
                return cls(500, str(error), SERVER, code=error.error_type)

    @classmethod
    def of_body(cls, request: Request, error: RequestValidationError | HTTPException) -> Fault:
        """What is wrong with a body that cannot be read."""
        if isinstance(error, RequestValidationError):
            first = error.errors()[0]
            if first["loc"][:1] == ("body",) and len(first["loc"]) > 1:
                return cls._of_field(first)
            error = body_error(request, error)
        status = 400 if error.status_code == 422 else error.status_code
        detail = error.detail.encode(errors="replace").decode()
        message = detail.removeprefix(_PREFIX) or "The request cannot be read"
        return cls(status, message, code=CODES.get(status))

    @classmethod
    def _of_field(cls, detail: Mapping[str, Any]) -> Fault:
        path = _path(detail["loc"][1:])
        match detail["type"]:
            case "missing":
                message, code = (
                    f"Missing required parameter: `{path}`",
                    "missing_required_parameter",
                )
            case "none_required":
                message, code = f"`{path}` is not supported: leave it out", "unsupported_parameter"
            case "extra_forbidden":
                message, code = f"Unrecognized request argument: `{path}`", "unknown_parameter"
            case _:
                message, code = f"`{path}`: {detail['msg']}", "invalid_value"
        return cls(400, message, INVALID, path, code)

    @classmethod
    def _too_long(cls, error: TooLongError, words: Words) -> Fault:
        total = error.input_length + error.max_new_tokens
        prompt = words.names.get("inputs", "inputs")
        message = (
            f"This model's maximum context length is {error.max_total_tokens} tokens. However, you "
            f"requested {total} tokens ({error.input_length} in `{prompt}`, {error.max_new_tokens} "
            "for the completion). Please reduce one of them"
        )
        return cls(400, message, INVALID, prompt, "context_length_exceeded")

    @classmethod
    def _too_long_prompt(cls, error: TooLongPromptError, words: Words) -> Fault:
        prompt = words.names.get("inputs", "inputs")
        message = (
            f"This server takes prompts of up to {error.max_input_tokens} tokens. However, "
            f"`{prompt}` has {error.input_length}. Please reduce it"
        )
        return cls(400, message, INVALID, prompt, "context_length_exceeded")

    @property
    def json(self) -> bytes:
        """The body, also of the last event of a stream."""
        fault: FaultBody = {
            "message": _printable(self.message),
            "type": self.type,
            "param": None if self.param is None else _printable(self.param),
            "code": self.code,
        }
        body: OpenAIErrorBody = {"error": fault}
        return msgspec.json.encode(body)

    def response(self) -> Response:
        """The answer."""
        headers = {"retry-after": str(RETRY_AFTER_SECONDS)} if self.status == 503 else None
        return Response(self.json, self.status, headers, "application/json")


def _printable(text: str) -> str:
    """The text without halves of characters, which clients can send and nobody can encode."""
    return text.encode(errors="replace").decode()


def _path(parts: tuple[str | int, ...]) -> str:
    """`messages`, 0, `content` as messages[0].content."""
    path = ""
    for part in parts:
        if isinstance(part, int):
            path += f"[{part}]"
        else:
            name = part[:MAX_SHOWN_CHARACTERS]
            path += f".{name}" if path else name
    return path
