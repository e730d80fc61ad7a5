"""How the served model writes its answers: with calls of tools, behind reasoning."""

from __future__ import annotations

import re
import secrets
import string
from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec

from tokenloom_engine.constraints.spec import JSON_KINDS, ConstraintSpec
from tokenloom_engine.messages import StopScope
from tokenloom_router.chat_template import ChatPrompt
from tokenloom_router.errors import ValidationError
from tokenloom_router.parameters import validate_text
from tokenloom_server.answer_parser import AnswerParser
from tokenloom_server.reasoning import ReasoningParser, ReasoningTags, as_format
from tokenloom_server.tools.call_grammar import Format, call_grammar
from tokenloom_server.tools.call_parser import CallParser
from tokenloom_server.tools.formats import pick_format
from tokenloom_server.tools.tool import ToolChoice
from tokenloom_server.tools.tool_prompt import (
    Message,
    encode_arguments,
    flatten_calls,
    flatten_results,
    instructed,
    tool_bodies,
)

MENTIONS_TOOLS = re.compile(r"\{[{%][^}]*\btools\b")
"""A template that knows tools reads a variable of this name."""
RENDERS_CALLS = re.compile(r"\{[{%][^}]*\btool_calls\b")
RENDERS_RESULTS = re.compile(r"""\{[{%][^}]*["']tool["']""")
"""A template that compares a message's role with `tool`."""
CONCATENATES_ARGUMENTS = re.compile(r"""\+\s*[\w.\[\]'"]*\barguments\b['"\]]*\s*(?:\+|-?[%}]\})""")
"""A template that adds a call's arguments to strings, without a filter that encodes them."""
ALPHANUMERIC = string.ascii_letters + string.digits


class AnswerForm:
    """One per server: what its model's chat template and two flags say."""

    def __init__(
        self, template: str | None, call_parser: str, reasoning: ReasoningTags | None
    ) -> None:
        """`template` is the one for chats with tools. `call_parser` is a format's name or auto."""
        text = template or ""
        self._knows_tools = MENTIONS_TOOLS.search(text) is not None
        self._renders_calls = self._knows_tools or RENDERS_CALLS.search(text) is not None
        self._renders_results = self._knows_tools or (
            self._renders_calls and RENDERS_RESULTS.search(text) is not None
        )
        self._concatenates_arguments = CONCATENATES_ARGUMENTS.search(text) is not None
        self.format = pick_format(call_parser, template if self._renders_calls else None)
        self.reasoning = reasoning
        texts = self.format.group([("", "")]) + (self.format.separator or "")
        self._fixed = [texts, *((reasoning.start, reasoning.end) if reasoning else ())]

    def prompt(self, chat: ChatPrompt, choice: ToolChoice) -> ChatPrompt:
        """A chat as the template takes it, with what the model must be told of tools."""
        tools = tool_bodies(choice.tools) if self._knows_tools and choice.callable else None
        return replace(chat, messages=self._messages(chat.messages, choice), tools=tools)

    def _messages(self, messages: Sequence[Message], choice: ToolChoice) -> list[Message]:
        if not self._renders_results:
            messages = flatten_results(messages)
        if not self._renders_calls:
            messages = flatten_calls(messages, self.format)
        elif self._concatenates_arguments:
            messages = encode_arguments(messages)
        if choice.callable and not (self._knows_tools and not self.format.needs_prompt):
            messages = instructed(messages, self.format, choice)
        return list(messages)

    def is_mark(self, special_token: str) -> bool:
        """Whether a special token is part of the form, and so of the text that is parsed."""
        return any(special_token in text for text in self._fixed)

    def constraint(
        self, choice: ToolChoice, text: ConstraintSpec | None, *, is_open: bool
    ) -> ConstraintSpec | None:
        """What holds for the whole output, where `text` is what holds for the answer's text.

        `is_open`: whether the prompt ends inside of reasoning. Raises ValidationError.
        """
        if not choice.callable and (text is None or self.reasoning is None):
            return text
        answer = _format(text) if text is not None else None
        if choice.callable:
            answer = call_grammar(self.format, choice, answer)
        assert answer is not None, "there are calls or there is a text"
        if self.reasoning is not None:
            answer = self.reasoning.before(answer, is_open=is_open)
        blamed = f"`{choice.field}`" if choice.field is not None else "grammar"
        try:
            value = msgspec.json.encode({"format": answer}).decode()
        except RecursionError:
            raise ValidationError(f"{blamed} is not valid: nested too deeply") from None
        except UnicodeEncodeError:
            raise ValidationError(f"{blamed} is not valid: not Unicode text") from None
        return ConstraintSpec(
            "structural_tag",
            value,
            whitespace_pattern=text.whitespace_pattern if text is not None else None,
            lenient=text is not None and text.kind == "structural_tag" and text.lenient,
        )

    def stop_scope(
        self, choice: ToolChoice, text: ConstraintSpec | None, *, is_open: bool
    ) -> StopScope:
        """Stop strings count in the answer's text: neither in reasoning nor in calls."""
        tags, calls = self.reasoning, tuple[str, ...]()
        if choice.mode == "required":
            calls = ("",)
        elif choice.callable:
            calls = (self.format.opener,)
            if not self.format.opener:
                calls = tuple(self.format.begin(tool.name) for tool in choice.callable)
        return StopScope(
            aside=(tags.start, tags.end) if tags is not None else None,
            is_aside_open=is_open,
            until=calls,
            in_json=text is not None and text.kind in JSON_KINDS,
        )

    def parser(self, choice: ToolChoice, *, is_open: bool) -> AnswerParser:
        """What reads one answer."""
        names = [tool.name for tool in choice.callable]
        calls = CallParser(self.format, names, is_due=choice.mode == "required") if names else None
        tags = self.reasoning
        return AnswerParser(ReasoningParser(tags, is_open=is_open) if tags else None, calls)

    def call_id(self) -> str:
        """A name for a call that no other has."""
        length = self.format.id_length
        if length is None:
            return f"call_{secrets.token_hex(12)}"
        return "".join(secrets.choice(ALPHANUMERIC) for _ in range(length))


@dataclass(frozen=True, slots=True)
class AnswerPlan:
    """What the answers to one request may be, and how they are read."""

    form: AnswerForm
    choice: ToolChoice
    is_open: bool
    """Whether the prompt ends inside of reasoning."""

    def parser(self) -> AnswerParser:
        """What reads one answer."""
        return self.form.parser(self.choice, is_open=self.is_open)

    def is_mark(self, special_token: str) -> bool:
        """Whether a special token is part of the text that is parsed."""
        is_plain = not self.choice.callable and self.form.reasoning is None
        return not is_plain and self.form.is_mark(special_token)


def _format(spec: ConstraintSpec) -> Format:
    validate_text("grammar", spec.value, spec.whitespace_pattern or "")
    try:
        return as_format(spec)
    except (msgspec.DecodeError, KeyError, TypeError) as error:
        raise ValidationError(f"grammar is not valid: {error}") from None
