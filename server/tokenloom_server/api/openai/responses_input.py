"""The items of a response's input, and the chat that they make."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag

from tokenloom_server.api.items import Items
from tokenloom_server.api.openai.chat_message import ChatMessage, FunctionCall, ToolCall

LENIENT = ConfigDict(strict=True, extra="ignore")
"""Clients send items back as they hold them, with fields of their own."""
TAGS = {
    "message": "Message",
    "function_call": "FunctionCall",
    "function_call_output": "FunctionCallOutput",
    "reasoning": "Reasoning",
}
Status = Literal["in_progress", "completed", "incomplete"] | None
Content = Annotated[str | list[Any], Field(union_mode="left_to_right")]


class InputMessage(BaseModel):
    """Something that was said: by the user, or in an earlier response's output."""

    model_config = LENIENT

    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: Content = Field(description="A text, or a list of parts with text")
    id: str | None = None
    status: Status = None
    phase: Literal["commentary", "final_answer"] | None = None


class InputCall(BaseModel):
    """A call from an earlier response's output."""

    model_config = LENIENT

    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str = Field(description="JSON")
    id: str | None = None
    status: Status = None
    caller: None = None
    namespace: None = None


class InputCallOutput(BaseModel):
    """What a called function returned."""

    model_config = LENIENT

    type: Literal["function_call_output"]
    call_id: str
    output: Content
    id: str | None = None
    status: Status = None


class InputReasoning(BaseModel):
    """Reasoning from an earlier response's output."""

    model_config = LENIENT

    type: Literal["reasoning"]
    id: str | None = None
    summary: list[Any] = []
    content: Items[dict[str, Any]] | None = None
    encrypted_content: str | None = None
    status: Status = None

    @property
    def text(self) -> str:
        """All of it."""
        return "".join(str(part.get("text", "")) for part in self.content or ())


def _item_tag(item: object) -> str | None:
    """A message need not say that it is one."""
    kind = item.get("type") or "message" if isinstance(item, dict) else None
    return TAGS.get(kind) if isinstance(kind, str) else None


def _input_tag(value: object) -> str:
    return "Text" if isinstance(value, str) else "Items"


InputItem = Annotated[
    Annotated[InputMessage, Tag("Message")]
    | Annotated[InputCall, Tag("FunctionCall")]
    | Annotated[InputCallOutput, Tag("FunctionCallOutput")]
    | Annotated[InputReasoning, Tag("Reasoning")],
    Discriminator(
        _item_tag,
        custom_error_type="item_type",
        custom_error_message=f"must be an item with a type among {', '.join(TAGS)}",
    ),
]
Input = Annotated[
    Annotated[str, Tag("Text")] | Annotated[Items[InputItem], Tag("Items")],
    Discriminator(_input_tag),
]


@dataclass(slots=True)
class ChatOfItems:
    """Messages, and where in the input each begins. Calls are part of what the assistant said."""

    messages: list[tuple[str, ChatMessage]] = field(default_factory=list)
    _reasoning: str = ""

    @classmethod
    def of(cls, items: Sequence[InputItem]) -> ChatOfItems:
        """The chat of these items."""
        chat = cls()
        for number, item in enumerate(items):
            chat._add(f"input[{number}]", item)
        return chat

    def _add(self, place: str, item: InputItem) -> None:
        match item:
            case InputReasoning():
                self._reasoning += item.text
            case InputMessage(role="assistant"):
                self._say(place, content=item.content)
            case InputMessage():
                message = ChatMessage(role=item.role, content=item.content)
                self.messages.append((place, message))
            case InputCall():
                self._call(place, item)
            case InputCallOutput():
                message = ChatMessage(role="tool", content=item.output, tool_call_id=item.call_id)
                self.messages.append((place, message))

    def _say(self, place: str, **fields: Any) -> None:  # noqa: ANN401 - a message's fields
        if self._reasoning:
            fields["reasoning_content"], self._reasoning = self._reasoning, ""
        self.messages.append((place, ChatMessage(role="assistant", **fields)))

    def _call(self, place: str, item: InputCall) -> None:
        function = FunctionCall(name=item.name, arguments=item.arguments)
        call = ToolCall(id=item.call_id, function=function)
        if self.messages and not self._reasoning:
            last = self.messages[-1][1]
            if last.role == "assistant":
                last.tool_calls = [*(last.tool_calls or ()), call]
                return
        self._say(place, content=None, tool_calls=[call])
