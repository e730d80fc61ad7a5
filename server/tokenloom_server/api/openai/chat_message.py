"""The messages of a chat, as OpenAI has them and as chat templates take them."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from tokenloom_router.errors import ValidationError
from tokenloom_server.api.items import Items
from tokenloom_server.strict_json import parse_value

Role = Literal["system", "developer", "user", "assistant", "tool"]
_TEXT_PARTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
"""The kinds of parts that are text, and the field that has it."""


class FunctionCall(BaseModel):
    """A function and what it is called with."""

    model_config = ConfigDict(strict=True, extra="forbid")

    name: str
    arguments: str | dict[str, Any] = Field(default="", description="JSON, as text or an object")
    description: str | None = None


class ToolCall(BaseModel):
    """A call that the assistant made."""

    model_config = ConfigDict(strict=True, extra="ignore")

    id: str | None = None
    type: Literal["function"] = "function"
    function: FunctionCall


class ChatMessage(BaseModel):
    """A message. Fields that are not named here are handed to the chat template."""

    model_config = ConfigDict(strict=True, extra="allow")

    role: Role
    content: Annotated[str | list[Any] | None, Field(union_mode="left_to_right")] = Field(
        default=None, description='A text, or a list of parts `{"type": "text", "text": …}`'
    )
    name: str | None = None
    tool_calls: Items[ToolCall] | None = None
    tool_call_id: str | None = None

    def to_template(self, place: str, *, knows_developer: bool) -> dict[str, Any]:
        """The form that chat templates take. Raise ValidationError, naming the place."""
        message: dict[str, Any] = {
            name: value for name, value in (self.model_extra or {}).items() if value is not None
        }
        is_renamed = self.role == "developer" and not knows_developer
        message["role"] = "system" if is_renamed else self.role
        calls = [_call(place, index, call) for index, call in enumerate(self.tool_calls or ())]
        text = self._text(place)
        if text is None and not (calls and self.role == "assistant"):
            raise ValidationError(f"`{place}.content` must be a text or a list of parts")
        message["content"] = text or ""
        if calls:
            message["tool_calls"] = calls
        for name in ("name", "tool_call_id"):
            if (value := getattr(self, name)) is not None:
                message[name] = value
        return message

    def _text(self, place: str) -> str | None:
        """The content, its parts joined without anything between them."""
        if not isinstance(self.content, list):
            return self.content
        if not self.content:
            raise ValidationError(f"`{place}.content` must not be empty")
        parts = enumerate(self.content)
        return "".join(_part_text(f"{place}.content[{index}]", part) for index, part in parts)


def _part_text(place: str, part: object) -> str:
    if not isinstance(part, dict):
        raise ValidationError(f"`{place}` must be an object with `type`")
    kind = part.get("type")
    if not isinstance(kind, str) or kind not in _TEXT_PARTS:
        raise ValidationError(
            f"`{place}` has the type {json.dumps(kind)[:100]}, which is not supported: "
            'the model takes parts of the type "text" only'
        )
    text = part.get(_TEXT_PARTS[kind])
    if not isinstance(text, str):
        raise ValidationError(f"`{place}.{_TEXT_PARTS[kind]}` must be a text")
    return text


def _call(place: str, index: int, call: ToolCall) -> dict[str, Any]:
    """Templates take the arguments as an object, clients send their JSON text."""
    arguments: object = call.function.arguments
    if isinstance(arguments, str):
        try:
            arguments = parse_value(arguments or "{}")
        except (ValueError, RecursionError):
            arguments = None
        if not isinstance(arguments, dict):
            raise ValidationError(
                f"`{place}.tool_calls[{index}].function.arguments` must be a JSON object"
            )
    function = {"name": call.function.name, "arguments": arguments}
    body: dict[str, Any] = {"type": "function", "function": function}
    return body if call.id is None else {"id": call.id, **body}
