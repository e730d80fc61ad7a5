"""The items of a response's output, and the events that tell how they grow."""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from tokenloom_server.api.openai.token_logprobs import TokenLogprobBody

Event = dict[str, Any]
Status = Literal["in_progress", "completed", "incomplete"]


class OutputItem(ABC):
    """One item. It is opened, grows, and is closed."""

    id_prefix: str

    def __init__(self, index: int) -> None:
        """`index` is its place in the output."""
        self._index = index
        self._id = f"{self.id_prefix}_{secrets.token_hex(12)}"
        self._text = ""

    @abstractmethod
    def body(self, status: Status) -> Event:
        """The item as it is now."""

    @abstractmethod
    def open(self) -> list[Event]:
        """It begins."""

    @abstractmethod
    def add(self, text: str, logprobs: Sequence[TokenLogprobBody] = ()) -> list[Event]:
        """It grows."""

    @abstractmethod
    def close(self, status: Status) -> list[Event]:
        """It ends."""

    def _event(self, type: str, **fields: object) -> Event:
        """Something that happened to the item's content."""
        place = {"item_id": self._id, "output_index": self._index}
        return {"type": f"response.{type}", **place, **fields}

    def _item_event(self, type: str, body: Event) -> Event:
        return {"type": f"response.output_item.{type}", "output_index": self._index, "item": body}


class PartItem(OutputItem):
    """An item whose text is in the one part that it has."""

    part_type: str
    delta_name: str
    """Of its events, without the ending."""

    @abstractmethod
    def _part(self) -> Event:
        """The part as it is now."""

    def open(self) -> list[Event]:
        """See OutputItem."""
        return [
            self._item_event("added", self.body("in_progress")),
            self._event("content_part.added", content_index=0, part=self._part()),
        ]

    def close(self, status: Status) -> list[Event]:
        """See OutputItem."""
        return [
            self._event(f"{self.delta_name}.done", content_index=0, **self._whole()),
            self._event("content_part.done", content_index=0, part=self._part()),
            self._item_event("done", self.body(status)),
        ]

    def _whole(self) -> Mapping[str, object]:
        return {"text": self._text}

    def _content(self, status: Status) -> list[Event]:
        """Empty before anything was said."""
        return [self._part()] if status != "in_progress" else []


class MessageItem(PartItem):
    """Text for the user."""

    id_prefix = "msg"
    delta_name = "output_text"

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self._logprobs: list[TokenLogprobBody] = []

    def body(self, status: Status) -> Event:
        """See OutputItem."""
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "status": status,
            "content": self._content(status),
        }

    def add(self, text: str, logprobs: Sequence[TokenLogprobBody] = ()) -> list[Event]:
        """See OutputItem."""
        self._text += text
        self._logprobs += logprobs
        delta = {"delta": text, "logprobs": logprobs}
        return [self._event("output_text.delta", content_index=0, **delta)]

    def _part(self) -> Event:
        return {
            "type": "output_text",
            "text": self._text,
            "annotations": [],
            "logprobs": list(self._logprobs),
        }

    def _whole(self) -> Mapping[str, object]:
        return {"text": self._text, "logprobs": list(self._logprobs)}


class ReasoningItem(PartItem):
    """What the model thought before it answered."""

    id_prefix = "rs"
    delta_name = "reasoning_text"

    def body(self, status: Status) -> Event:
        """See OutputItem."""
        return {
            "id": self._id,
            "type": "reasoning",
            "summary": [],
            "content": self._content(status),
            "status": status,
        }

    def add(self, text: str, logprobs: Sequence[TokenLogprobBody] = ()) -> list[Event]:
        """See OutputItem."""
        self._text += text
        return [self._event("reasoning_text.delta", content_index=0, delta=text)]

    def _part(self) -> Event:
        return {"type": "reasoning_text", "text": self._text}


class CallItem(OutputItem):
    """A call of a function."""

    id_prefix = "fc"

    def __init__(self, index: int, call_id: str, name: str) -> None:
        super().__init__(index)
        self._call_id = call_id
        self._name = name

    def body(self, status: Status) -> Event:
        """See OutputItem."""
        return {
            "id": self._id,
            "type": "function_call",
            "call_id": self._call_id,
            "name": self._name,
            "arguments": self._text,
            "status": status,
        }

    def open(self) -> list[Event]:
        """See OutputItem."""
        return [self._item_event("added", self.body("in_progress"))]

    def add(self, text: str, logprobs: Sequence[TokenLogprobBody] = ()) -> list[Event]:
        """See OutputItem."""
        self._text += text
        return [self._event("function_call_arguments.delta", delta=text)]

    def close(self, status: Status) -> list[Event]:
        """See OutputItem."""
        whole = {"name": self._name, "arguments": self._text}
        return [
            self._event("function_call_arguments.done", **whole),
            self._item_event("done", self.body(status)),
        ]
