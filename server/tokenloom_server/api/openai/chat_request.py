"""The body of /v1/chat/completions, and its meaning for the router."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

from pydantic import Field

from tokenloom_engine.messages import LogprobParams
from tokenloom_router.chat_template import ChatPrompt, ChatTemplate
from tokenloom_router.errors import ValidationError
from tokenloom_router.parameters import validate_text
from tokenloom_router.request import GenerateRequest
from tokenloom_router.sampling_defaults import SamplingDefaults
from tokenloom_server.api.items import Items
from tokenloom_server.api.openai.chat_message import ChatMessage
from tokenloom_server.api.openai.errors import Words
from tokenloom_server.api.openai.sampling import (
    MAX_TOP_LOGPROBS,
    Absent,
    Retention,
    SamplingFields,
)
from tokenloom_server.api.openai.tools import Choice, Tools, tool_choice
from tokenloom_server.tools.tool import ToolChoice

NAMES = {
    "inputs": "messages",
    "max_new_tokens": "max_tokens",
    "min_new_tokens": "min_tokens",
    "top_n_tokens": "top_logprobs",
    "truncate": "truncate_prompt_tokens",
}


class ChatBody(SamplingFields):
    """A chat, and how to answer."""

    messages: Items[ChatMessage] = Field(min_length=1)
    max_tokens: int | None = Field(
        default=None,
        ge=1,
        lt=2**32,
        description="Most tokens to generate; without it as many as the server allows",
    )
    max_completion_tokens: int | None = Field(
        default=None, ge=1, lt=2**32, description="The newer name of `max_tokens`"
    )
    logprobs: bool | None = Field(default=None, description="Return log-probabilities")
    top_logprobs: int | None = Field(
        default=None,
        ge=0,
        le=MAX_TOP_LOGPROBS,
        description="Return those of so many most probable tokens, too; needs `logprobs`",
    )
    tools: Tools | None = Field(default=None, description="Functions that the model may call")
    tool_choice: Choice | None = Field(
        default=None,
        description="`auto`, `none`, `required`, or the one tool that must be called; without it "
        "`auto` if there are tools",
    )
    parallel_tool_calls: bool | None = Field(
        default=None, description="Whether an answer may have several calls; true if absent"
    )
    tool_prompt: str | None = Field(
        default=None,
        description="Must be absent: the model is asked in its own format of calls (TGI)",
    )
    reasoning_effort: str | None = Field(
        default=None, description="Handed to the chat template; has no effect if that has no use"
    )
    modalities: Items[Literal["text"]] | None = Field(default=None, description="Text alone")
    service_tier: Literal["auto", "default"] | None = Field(
        default=None, description="There is one"
    )
    safety_identifier: str | None = Field(default=None, description="Has no effect")
    prompt_cache_key: str | None = Field(
        default=None, description="Has no effect: equal beginnings of prompts are always found"
    )
    prompt_cache_retention: Retention | None = Field(default=None, description="There is one")
    prompt_cache_options: Absent = None
    verbosity: Literal["medium"] | None = Field(default=None, description="There is one")
    functions: Absent = None
    function_call: Absent = None
    audio: Absent = None
    moderation: Absent = None
    prediction: Absent = None
    web_search_options: Absent = None
    add_generation_prompt: bool | None = Field(
        default=None,
        description="Whether the prompt ends with the beginning of an answer; true but where a "
        "message is continued (vLLM)",
    )
    continue_final_message: bool | None = Field(
        default=None,
        description="Whether the answer continues the last message; true if absent and that is the "
        "assistant's text (vLLM)",
    )
    chat_template_kwargs: dict[str, Any] | None = Field(
        default=None, description="Variables for the chat template (vLLM)"
    )
    documents: Items[dict[str, Any]] | None = Field(
        default=None, description="For chat templates that know documents (vLLM)"
    )

    @property
    def num_choices(self) -> int:
        """How many answers are wanted."""
        return self.n or 1

    @property
    def num_items(self) -> int:
        """How many messages there are."""
        return len(self.messages)

    def calls(self) -> ToolChoice:
        """Which tools may be called. Raises ValidationError."""
        return tool_choice(self.tools, self.tool_choice, self.parallel_tool_calls)

    @property
    def words(self) -> Words:
        """What this route calls things."""
        names = dict(NAMES)
        if self.max_completion_tokens is not None:
            names["max_new_tokens"] = "max_completion_tokens"
        named = self.constraint()
        calls = self.calls()
        has_tag = named is not None and named[1].kind == "structural_tag"
        return Words(names, named[0] if named else calls.field or "response_format", calls, has_tag)

    def to_request(self, template: ChatTemplate, defaults: SamplingDefaults) -> GenerateRequest:
        """In the router's words. Raises ValidationError."""
        if self.top_logprobs and not self.logprobs:
            raise ValidationError("`top_logprobs` needs `logprobs` to be true")
        if self.tool_prompt is not None:
            raise ValidationError("`tool_prompt` is not supported: say it in a message")
        logprobs = LogprobParams(
            tokens=bool(self.logprobs),
            top_n_tokens=self.top_logprobs or 0,
            processed=self.logprobs_mode == "processed",
        )
        request = self.sampled_request(
            defaults, max_tokens=self._max_tokens(), logprobs=logprobs, n=self.num_choices
        )
        return replace(request, chat=self.to_prompt(template))

    def to_prompt(self, template: ChatTemplate) -> ChatPrompt:
        """What the chat template makes the prompt of. Raises ValidationError."""
        continues = self._continues()
        if continues and self.add_generation_prompt:
            raise ValidationError(
                "`continue_final_message` and `add_generation_prompt` exclude each other"
            )
        knows_developer = template.mentions("developer")
        variables = dict(self.chat_template_kwargs or {})
        if self.reasoning_effort is not None:
            validate_text("reasoning_effort", self.reasoning_effort)
            variables.setdefault("reasoning_effort", self.reasoning_effort)
        return ChatPrompt(
            messages=[
                message.to_template(f"messages[{index}]", knows_developer=knows_developer)
                for index, message in enumerate(self.messages)
            ],
            documents=self.documents,
            add_generation_prompt=not continues and self.add_generation_prompt is not False,
            continue_final_message=continues,
            variables=variables,
        )

    def _continues(self) -> bool:
        last = self.messages[-1]
        is_open = last.role == "assistant" and bool(last.content) and not last.tool_calls
        if self.continue_final_message and not last.content:
            raise ValidationError("`continue_final_message` needs a last message with content")
        if self.continue_final_message is None:
            return is_open and not self.add_generation_prompt
        return self.continue_final_message

    def _max_tokens(self) -> int | None:
        old, new = self.max_tokens, self.max_completion_tokens
        if old is not None and new is not None and old != new:
            raise ValidationError("`max_tokens` and `max_completion_tokens` exclude each other")
        return old if new is None else new
