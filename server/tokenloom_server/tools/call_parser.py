"""Reads calls of tools out of an answer, piece by piece, as they are written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from tokenloom_server.tools.call_format import CallFormat


@dataclass(frozen=True, slots=True)
class Content:
    """Text for the user."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """A tool is called; its arguments follow."""

    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """A piece of the last call's arguments: of their JSON text."""

    text: str


CallEvent = Content | CallStart | CallArguments
State = Literal["text", "arguments", "end", "between"]


class CallParser:
    """Splits an answer that obeys a format's grammar into text and calls.

    Text is held back while it may be the beginning of a call, white space in front of it too.
    """

    def __init__(self, format: CallFormat, names: Sequence[str], *, is_due: bool) -> None:
        """`is_due`: whether the answer is calls and nothing else."""
        self._format = format
        self._is_due = is_due
        self._first = {format.opener + format.begin(name): name for name in names}
        self._next = {(format.separator or "") + format.begin(name): name for name in names}
        self._state: State = "text"
        self._buffer = ""
        self._arguments = JsonEnd()
        self.num_calls = 0
        """How many calls have begun."""

    @property
    def is_complete(self) -> bool:
        """Whether there are calls, and the last one's arguments are whole."""
        return self.num_calls > 0 and self._state != "arguments"

    def push(self, text: str) -> list[CallEvent]:
        """Take the next piece of the answer."""
        self._buffer += text
        events: list[CallEvent] = []
        while self._advance(events):
            pass
        return events

    def flush(self) -> list[CallEvent]:
        """The answer has ended: what was held back is text, unless it could only be a call."""
        text, self._buffer = self._buffer, ""
        opener = self._format.opener
        if self._state != "text" or self._is_due or (opener and opener in text):
            return []
        return [Content(text)] if text else []

    def _advance(self, events: list[CallEvent]) -> bool:
        """Read on as far as one state goes. Returns whether another one follows."""
        match self._state:
            case "text":
                return self._read_text(events)
            case "arguments":
                return self._read_arguments(events)
            case "end":
                return self._skip_end()
            case "between":
                return self._start_call(self._next, 0, events)

    def _read_text(self, events: list[CallEvent]) -> bool:
        buffer = self._buffer
        first_char = next(iter(self._first))[0]
        place = buffer.find(first_char)
        while place >= 0:
            if any(_agree(buffer, place, begin) for begin in self._first):
                break
            place = buffer.find(first_char, place + 1)
        end = len(buffer) if place < 0 else place
        text = buffer[:end].rstrip()
        if place >= 0 and self._start_call(self._first, place, events, text):
            return True
        if text:
            events.append(Content(text))
            self._buffer = buffer[len(text) :]
        return False

    def _start_call(
        self, begins: dict[str, str], place: int, events: list[CallEvent], text: str = ""
    ) -> bool:
        """Where a whole beginning of a call stands, go on behind it."""
        for begin, name in begins.items():
            if self._buffer.startswith(begin, place):
                if text:
                    events.append(Content(text))
                events.append(CallStart(name))
                self._buffer = self._buffer[place + len(begin) :]
                self._arguments = JsonEnd()
                self._state = "arguments"
                self.num_calls += 1
                return True
        return False

    def _read_arguments(self, events: list[CallEvent]) -> bool:
        end = self._arguments.find(self._buffer)
        text = self._buffer if end is None else self._buffer[:end]
        if text:
            events.append(CallArguments(text))
        self._buffer = self._buffer[len(text) :]
        if end is None:
            return False
        self._state = "end"
        return True

    def _skip_end(self) -> bool:
        end = self._format.end
        if len(self._buffer) < len(end):
            return False
        self._buffer = self._buffer[len(end) :]
        self._state = "between"
        return True


class JsonEnd:
    """Finds the end of a JSON object that comes in pieces."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = False
        self._is_escaped = False

    def find(self, text: str) -> int | None:
        """Take the next piece; returns the place behind the object's end, if that is in it."""
        for place, char in enumerate(text):
            if self._is_escaped:
                self._is_escaped = False
            elif self._in_string:
                self._is_escaped = char == "\\"
                self._in_string = char != '"'
            elif char == '"':
                self._in_string = True
            elif char in "{[":
                self._depth += 1
            elif char in "}]":
                self._depth -= 1
                if self._depth == 0:
                    return place + 1
        return None


def _agree(text: str, place: int, begin: str) -> bool:
    """Whether the text goes on with this beginning, as far as either goes."""
    rest = text[place : place + len(begin)]
    return begin.startswith(rest)
