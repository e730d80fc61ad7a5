"""The body of /v1/responses, and its meaning for the router."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, Literal

import msgspec
from pydantic import BaseModel, Field
from typing_extensions import TypedDict

from tokenloom_engine.messages import LogprobParams
from tokenloom_router.chat_template import ChatPrompt, ChatTemplate
from tokenloom_router.errors import ValidationError
from tokenloom_router.request import GenerateRequest
from tokenloom_router.sampling_defaults import SamplingDefaults
from tokenloom_server.api.grammar import STRICT
from tokenloom_server.api.items import Items
from tokenloom_server.api.openai.chat_message import ChatMessage
from tokenloom_server.api.openai.errors import Words
from tokenloom_server.api.openai.responses_fields import (
    ChosenTool,
    FunctionTool,
    ReasoningBody,
    TextBody,
)
from tokenloom_server.api.openai.responses_input import ChatOfItems, Input
from tokenloom_server.api.openai.sampling import (
    MAX_TOP_LOGPROBS,
    Absent,
    Float,
    Retention,
    SamplingFields,
    Share,
    first,
)
from tokenloom_server.api.openai.structured_outputs import TextFormat
from tokenloom_server.api.openai.tools import (
    MAX_TOOLS,
    ChosenFunction,
    NamedToolChoice,
    tool_choice,
)
from tokenloom_server.tools.tool import ToolChoice

LOGPROBS = "message.output_text.logprobs"
DEFAULT_TEMPERATURE = 1.0
DEFAULT_TOP_P = 1.0
NAMES = {
    "inputs": "input",
    "messages": "input",
    "max_new_tokens": "max_output_tokens",
    "top_n_tokens": "top_logprobs",
}


class EchoBody(TypedDict):
    """What a response says of its request."""

    instructions: str | None
    max_output_tokens: int | None
    temperature: float
    top_p: float
    top_logprobs: int | None
    tools: list[dict[str, Any]]
    tool_choice: str | dict[str, Any]
    parallel_tool_calls: bool
    text: dict[str, Any]
    reasoning: dict[str, Any]
    truncation: str
    store: bool
    background: bool
    previous_response_id: None
    metadata: dict[str, str]
    service_tier: str
    user: str | None


class ResponsesBody(BaseModel):
    """What was said so far, and how to respond. null is the same as absent."""

    model_config = STRICT

    model: str | None = Field(default=None, description="The served model's name, or `tgi`")
    input: Input = Field(
        description="A text of the user, or items: messages, calls and their outputs, reasoning"
    )
    instructions: str | None = Field(default=None, description="Come first, as the system's words")
    max_output_tokens: int | None = Field(default=None, ge=1, lt=2**32)
    temperature: Float | None = Field(default=None, ge=0)
    top_p: Share | None = None
    top_logprobs: int | None = Field(default=None, ge=0, le=MAX_TOP_LOGPROBS)
    stream: bool | None = None
    stream_options: Absent = None
    text: TextBody | None = None
    tools: Annotated[Items[FunctionTool], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: Literal["auto", "none", "required"] | ChosenTool | None = None
    parallel_tool_calls: bool | None = None
    reasoning: ReasoningBody | None = None
    include: (
        Items[Literal["message.output_text.logprobs", "reasoning.encrypted_content"]] | None
    ) = Field(default=None, description="Reasoning is returned as text, never encrypted")
    truncation: Literal["disabled"] | None = Field(
        default=None, description="An input that is too long is refused"
    )
    store: bool | None = Field(default=None, description="Must not be true: nothing is stored")
    background: bool | None = Field(default=None, description="Must not be true")
    previous_response_id: str | None = Field(
        default=None, description="Must be absent: send the items of earlier turns as `input`"
    )
    metadata: dict[str, str] | None = Field(default=None, description="Returned as it is")
    service_tier: Literal["auto", "default"] | None = None
    user: str | None = Field(default=None, description="Has no effect")
    safety_identifier: str | None = Field(default=None, description="Has no effect")
    prompt_cache_key: str | None = Field(default=None, description="Has no effect")
    prompt_cache_retention: Retention | None = Field(default=None, description="There is one")
    prompt_cache_options: Absent = None
    prompt: Absent = None
    conversation: Absent = None
    context_management: Absent = None
    max_tool_calls: Absent = None
    moderation: Absent = None

    @property
    def words(self) -> Words:
        """What this route calls things."""
        calls = self.calls()
        is_text = isinstance(self.format.format, TextFormat)
        return Words(NAMES, (is_text and calls.field) or "text.format", calls)

    @property
    def num_items(self) -> int:
        """How many messages, calls and outputs of calls there are."""
        return 1 if isinstance(self.input, str) else len(self.input)

    @property
    def wants_logprobs(self) -> bool:
        """Whether texts are returned with the log-probabilities of their tokens."""
        return LOGPROBS in (self.include or ()) or bool(self.top_logprobs)

    @property
    def format(self) -> TextBody:
        """What the text must look like."""
        return self.text or TextBody()

    def echo(self, defaults: SamplingDefaults) -> EchoBody:
        """What a response says of it, and of what it left to defaults."""
        temperature = first(self.temperature, defaults.temperature)
        top_p = first(self.top_p, defaults.top_p)
        choice = self.tool_choice or "auto"
        effort = self.reasoning.effort if self.reasoning is not None else None
        return {
            "instructions": self.instructions,
            "max_output_tokens": self.max_output_tokens,
            "temperature": DEFAULT_TEMPERATURE if temperature is None else temperature,
            "top_p": DEFAULT_TOP_P if top_p is None else top_p,
            "top_logprobs": self.top_logprobs,
            "tools": [tool.model_dump() for tool in self.tools or ()],
            "tool_choice": choice if isinstance(choice, str) else choice.model_dump(),
            "parallel_tool_calls": self.parallel_tool_calls is not False,
            "text": {"format": self.format.format.model_dump(by_alias=True)},
            "reasoning": {"effort": effort, "summary": None},
            "truncation": "disabled",
            "store": False,
            "background": False,
            "previous_response_id": None,
            "metadata": self.metadata or {},
            "service_tier": "default",
            "user": self.user,
        }

    def sampling(self) -> SamplingFields:
        """How to generate, as chats have it."""
        return SamplingFields(
            temperature=self.temperature,
            top_p=self.top_p,
            stream=self.stream,
            response_format=self.format.response_format(),
        )

    def calls(self) -> ToolChoice:
        """Which tools may be called. Raises ValidationError."""
        tools = [tool.to_body() for tool in self.tools or ()]
        choice = self.tool_choice
        if isinstance(choice, ChosenTool):
            named = NamedToolChoice(function=ChosenFunction(name=choice.name))
            return tool_choice(tools, named, self.parallel_tool_calls)
        return tool_choice(tools, choice, self.parallel_tool_calls)

    def to_request(self, template: ChatTemplate, defaults: SamplingDefaults) -> GenerateRequest:
        """In the router's words. Raises ValidationError."""
        self._refuse()
        logprobs = LogprobParams(tokens=self.wants_logprobs, top_n_tokens=self.top_logprobs or 0)
        request = self.sampling().sampled_request(
            defaults, max_tokens=self.max_output_tokens, logprobs=logprobs, n=1
        )
        return replace(request, chat=self._chat(template))

    def _chat(self, template: ChatTemplate) -> ChatPrompt:
        knows_developer = template.mentions("developer")
        effort = self.reasoning.effort if self.reasoning is not None else None
        messages = self._messages()
        if not messages:
            raise ValidationError("`input` must have a message")
        return ChatPrompt(
            messages=[
                message.to_template(place, knows_developer=knows_developer)
                for place, message in messages
            ],
            variables={} if effort is None else {"reasoning_effort": effort},
        )

    def _messages(self) -> list[tuple[str, ChatMessage]]:
        """With their places in the body."""
        head = []
        if self.instructions:
            head.append(("instructions", ChatMessage(role="system", content=self.instructions)))
        if isinstance(self.input, str):
            return [*head, ("input", ChatMessage(role="user", content=self.input))]
        return [*head, *ChatOfItems.of(self.input).messages]

    def _refuse(self) -> None:
        if self.store:
            raise ValidationError("`store` must not be true: the server keeps nothing")
        if self.background:
            raise ValidationError("`background` must not be true: the server keeps nothing")
        if self.previous_response_id is not None:
            raise ValidationError(
                "`previous_response_id` is not supported: the server keeps nothing; send the items "
                "of earlier turns as `input`"
            )
        for name, value in self.echo(SamplingDefaults()).items():
            try:
                msgspec.json.encode(value)
            except UnicodeEncodeError:
                raise ValidationError(f"`{name}` is not valid Unicode text") from None
