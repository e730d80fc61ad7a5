"""The lines of a batch: requests as OpenAI's batches or as TGI has them, and their answers."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
from msgspec import Raw

OPENAI_URLS = ("/v1/chat/completions", "/v1/completions", "/v1/responses")
TGI_URL = "/generate"


class OpenAiLine(msgspec.Struct, forbid_unknown_fields=True):
    """A line of OpenAI's shape."""

    custom_id: str
    url: str
    body: Raw
    method: Literal["POST"] = "POST"


class TgiLine(msgspec.Struct, forbid_unknown_fields=True):
    """A line of TGI's shape: the body of /generate."""

    inputs: Raw
    parameters: Raw = Raw(b"{}")


class LineError(Exception):
    """A line is no request. The message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLine:
    """A request of a batch."""

    number: int
    """Of its line in the input, from 1."""
    custom_id: str | None
    """None for TGI's shape."""
    url: str
    body: bytes
    """JSON, as it stood in the line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a route answered."""

    status: int
    body: bytes
    headers: Mapping[str, str]

    @property
    def is_good(self) -> bool:
        """Whether the request was served."""
        return self.status == 200

    @property
    def prompt_tokens(self) -> int:
        """As far as the answer tells."""
        return self._count("x-prompt-tokens", "prompt_tokens", "input_tokens")

    @property
    def generated_tokens(self) -> int:
        """As far as the answer tells."""
        return self._count("x-generated-tokens", "completion_tokens", "output_tokens")

    def _count(self, header: str, *names: str) -> int:
        """A number of tokens: TGI has it in a header, OpenAI in the body's `usage`."""
        if not self.is_good:
            return 0
        if header in self.headers:
            return int(self.headers[header])
        usage = msgspec.json.decode(self.body, type=Usage).usage
        return next((usage[name] for name in names if name in usage), 0)


class Usage(msgspec.Struct):
    """What we read of an answer."""

    usage: dict[str, Any] = {}


def parse_line(number: int, text: bytes) -> BatchLine:
    """Read a line of the input. Raises LineError."""
    try:
        fields = msgspec.json.decode(text, type=dict[str, Raw])
        if "inputs" in fields:
            msgspec.json.decode(text, type=TgiLine)
            return BatchLine(number=number, custom_id=None, url=TGI_URL, body=text.strip())
        line = msgspec.json.decode(text, type=OpenAiLine)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise LineError(f"the line is no request: {error}") from error
    if line.url not in OPENAI_URLS:
        raise LineError(f"`url` must be one of {', '.join(OPENAI_URLS)}. Given: {line.url}")
    body = bytes(line.body)
    if not body.startswith(b"{"):
        raise LineError("`body` must be an object")
    if msgspec.json.decode(body, type=dict[str, Raw]).get("stream") == Raw(b"true"):
        raise LineError("`body.stream` cannot be true in a batch")
    return BatchLine(number=number, custom_id=line.custom_id, url=line.url, body=body)


def answer_line(line: BatchLine, answer: Answer) -> bytes:
    """The line of the output for a request: in the shape that its own line had."""
    body = _json_object(answer.body)
    if line.custom_id is None:
        if body is None:
            body = {"error": answer.body.decode(errors="replace"), "error_type": "validation"}
        return _line({"line": line.number, **body})
    shown = {"error": answer.body.decode(errors="replace")} if body is None else body
    response = {
        "status_code": answer.status,
        "request_id": answer.headers.get("x-request-id"),
        "body": shown,
    }
    error = (
        None if answer.is_good else _error(str(answer.status), _message(shown) or "no such route")
    )
    return _openai_line(line.number, line.custom_id, response, error)


def error_line(number: int, message: str, *, custom_id: str | None) -> bytes:
    """The line of the output for what is no request."""
    return _openai_line(number, custom_id, None, _error("invalid_line", message))


def custom_id_of(text: bytes) -> str | None:
    """The `custom_id` of a line, even if the line is wrong otherwise."""
    try:
        return msgspec.json.decode(
            msgspec.json.decode(text, type=dict[str, Raw])["custom_id"], type=str
        )
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, KeyError):
        return None


def _message(body: Mapping[str, Any]) -> str:
    """What an error says: OpenAI's shape has an object, TGI's a text."""
    error = body.get("error")
    if isinstance(error, Raw):
        error = msgspec.json.decode(error)
    return str(error.get("message") if isinstance(error, dict) else error)


def _error(code: str, message: str) -> dict[str, str]:
    return {"code": code, "message": message}


def _openai_line(
    number: int,
    custom_id: str | None,
    response: Mapping[str, Any] | None,
    error: Mapping[str, str] | None,
) -> bytes:
    id = f"batch_req_{secrets.token_hex(12)}"
    fields = {"id": id, "custom_id": custom_id, "response": response, "error": error}
    return _line({"line": number, **fields})


def _json_object(text: bytes) -> dict[str, Any] | None:
    """The fields of a JSON object as they stand in it; None if it is none."""
    try:
        return msgspec.json.decode(text, type=dict[str, Raw])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _line(fields: Mapping[str, Any]) -> bytes:
    """JSON in one line, with the number of the line that it answers in front."""
    return msgspec.json.encode(fields) + b"\n"
