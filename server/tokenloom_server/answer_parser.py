"""Reads what a model wrote: its reasoning, text for the user, and calls of tools."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tokenloom_server.reasoning import ReasoningParser
from tokenloom_server.tools.call_parser import CallEvent, CallParser, Content


@dataclass(frozen=True, slots=True)
class Reasoning:
    """A piece of the reasoning."""

    text: str


AnswerEvent = Reasoning | CallEvent


class AnswerParser:
    """Reasoning first, if the model reasons, then text and calls, if there are tools."""

    def __init__(self, reasoning: ReasoningParser | None, calls: CallParser | None) -> None:
        self._reasoning = reasoning
        self._calls = calls

    @property
    def is_reasoning(self) -> bool:
        """Whether what comes next may still be reasoning."""
        return self._reasoning is not None and self._reasoning.is_inside

    @property
    def has_calls(self) -> bool:
        """Whether tools are called, and the last call is whole."""
        return self._calls is not None and self._calls.is_complete

    def push(self, text: str) -> Sequence[AnswerEvent]:
        """Take the next piece of the text."""
        if self._reasoning is None:
            return self._read_answer(text)
        reasoning, answer = self._reasoning.push(text)
        return [*_reasoning(reasoning), *self._read_answer(answer)]

    def flush(self) -> Sequence[AnswerEvent]:
        """The text has ended: what was held back."""
        events: list[AnswerEvent] = []
        if self._reasoning is not None:
            reasoning, answer = self._reasoning.flush()
            events += [*_reasoning(reasoning), *self._read_answer(answer)]
        return [*events, *(self._calls.flush() if self._calls is not None else ())]

    def _read_answer(self, text: str) -> Sequence[CallEvent]:
        if not text:
            return []
        return self._calls.push(text) if self._calls is not None else [Content(text)]


def _reasoning(text: str) -> list[Reasoning]:
    return [Reasoning(text)] if text else []
