"""Reasoning: what a model writes between two tags before its answer.

Constraints hold for the answer alone. It begins behind the first end tag, and from there on nothing
leads back: a second start tag is text like any other, and the constraint says if it may be there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import msgspec

from tokenloom_engine.constraints.spec import ConstraintSpec
from tokenloom_server.tools.call_grammar import Format

GAP: Format = {
    "type": "repeat",
    "min": 0,
    "max": 2,
    "content": {"type": "const_string", "value": "\n"},
}
"""What models write between an end tag and their answer."""
NONE = "none"
THINK = "think"


@dataclass(frozen=True, slots=True)
class ReasoningTags:
    """The texts around a model's reasoning."""

    start: str
    end: str

    @classmethod
    def parse(cls, option: str) -> ReasoningTags | None:
        """Read `none`, `think` or START,END. Raises ValueError."""
        if option == NONE:
            return None
        if option == THINK:
            return cls("<think>", "</think>")
        start, comma, end = option.partition(",")
        if not (comma and start.strip() and end.strip()) or "," in end or start == end:
            raise ValueError(f"must be {NONE}, {THINK} or two different tags, START,END")
        return cls(start.strip(), end.strip())

    def ends(self, prompt: str) -> bool:
        """Whether a prompt ends with a start tag: some chat templates begin the reasoning."""
        return prompt.rstrip().endswith(self.start)

    def is_open_in(self, message: str) -> bool:
        """Whether a message that is to be continued breaks off inside of reasoning."""
        return message.rfind(self.start) > message.rfind(self.end)

    def before(self, answer: Format, *, is_open: bool) -> Format:
        """The grammar of reasoning, if there is any, and an answer."""
        tag: Format = {
            "type": "tag",
            "begin": "" if is_open else self.start,
            "content": {"type": "any_text"},
            "end": self.end,
        }
        reasoning: Format = {"type": "sequence", "elements": [tag, GAP]}
        if not is_open:
            reasoning = {"type": "optional", "content": reasoning}
            answer = _without(answer, self.start)
        return {"type": "sequence", "elements": [reasoning, answer]}


def as_format(spec: ConstraintSpec) -> Format:
    """A constraint as a part of a structural tag. Its options are the structural tag's."""
    match spec.kind:
        case "json_schema":
            # Read, or a text that is no JSON could end the format that it stands in.
            return {
                "type": "json_schema",
                "json_schema": msgspec.json.decode(spec.value, type=msgspec.Raw),
                "lenient": spec.lenient,
            }
        case "json_object":
            return {"type": "json_schema", "json_schema": {"type": "object"}}
        case "regex":
            return {"type": "regex", "pattern": spec.value}
        case "choice":
            choices = msgspec.json.decode(spec.value, type=list[str])
            texts = [{"type": "const_string", "value": choice} for choice in choices]
            return {"type": "or", "elements": texts}
        case "grammar":
            return {"type": "grammar", "grammar": spec.value}
        case "structural_tag":
            return _unwrapped(spec.value)
        case "text":
            return {"type": "any_text"}


def _unwrapped(text: str) -> Format:
    tag = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    if "structures" not in tag:
        return msgspec.json.decode(tag["format"], type=Format)
    return {
        "type": "triggered_tags",
        "triggers": tag["triggers"],
        "tags": [
            {
                "type": "tag",
                "begin": structure["begin"],
                "content": {"type": "json_schema", "json_schema": structure["schema"]},
                "end": structure["end"],
            }
            for structure in msgspec.json.decode(
                tag["structures"], type=list[dict[str, msgspec.Raw]]
            )
        ],
    }


def _without(answer: Format, text: str) -> Format:
    """An answer whose free text does not have this text: so it cannot be taken for reasoning."""
    if answer["type"] not in ("any_text", "triggered_tags"):
        return answer
    return {**answer, "excludes": [*answer.get("excludes", ()), text]}


class ReasoningParser:
    """Splits an answer into its reasoning and what follows, piece by piece."""

    def __init__(self, tags: ReasoningTags, *, is_open: bool) -> None:
        self._tags = tags
        self._state: Literal["start", "reasoning", "gap", "answer"] = "start"
        self._is_open = is_open
        self._has_reasoning = False
        self._buffer = ""

    @property
    def is_inside(self) -> bool:
        """Whether the reasoning has begun and not ended."""
        return self._state == "reasoning" or (self._state == "start" and self._is_open)

    def push(self, text: str) -> tuple[str, str]:
        """Take the next piece; returns the reasoning and the answer that it brought."""
        self._buffer += text
        if self._state == "start":
            self._read_start()
        reasoning = self._read_reasoning() if self._state == "reasoning" else ""
        if self._state == "gap":
            self._buffer = self._buffer.lstrip()
            self._state = "answer" if self._buffer else "gap"
        if self._state != "answer":
            return reasoning, ""
        answer, self._buffer = self._buffer, ""
        return reasoning, answer

    def flush(self) -> tuple[str, str]:
        """The text has ended: what was held back, as reasoning and answer."""
        text, self._buffer = self._buffer, ""
        if self.is_inside:
            return text, ""
        return "", text

    def _read_start(self) -> None:
        """A start tag may stand at the beginning, also where the prompt has it already."""
        text = self._buffer.lstrip()
        start = self._tags.start
        if text.startswith(start):
            self._buffer = text[len(start) :]
            self._state = "reasoning"
        elif start.startswith(text):
            return
        elif self._is_open:
            self._state = "reasoning"
        else:
            self._state = "answer"

    def _read_reasoning(self) -> str:
        end = self._tags.end
        if not self._has_reasoning:
            self._buffer = self._buffer.lstrip()
        place = self._buffer.find(end)
        if place >= 0:
            text = self._buffer[:place].rstrip()
            self._buffer = self._buffer[place + len(end) :]
            self._state = "gap"
            return text
        held = next((n for n in range(len(end) - 1, 0, -1) if self._buffer.endswith(end[:n])), 0)
        text = self._buffer[: len(self._buffer) - held].rstrip()
        self._buffer = self._buffer[len(text) :]
        self._has_reasoning = self._has_reasoning or bool(text)
        return text
