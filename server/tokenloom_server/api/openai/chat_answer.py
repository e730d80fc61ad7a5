"""The answer of /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NotRequired

from typing_extensions import TypedDict

from tokenloom_engine.messages import SequenceOutput
from tokenloom_router.router import Router
from tokenloom_router.stream import Stream
from tokenloom_server.answer_form import AnswerPlan
from tokenloom_server.api.openai.answer import Answer, Body
from tokenloom_server.api.openai.chat_choice import (
    ChatChoice,
    ChatChoiceBody,
)
from tokenloom_server.api.openai.chat_request import ChatBody
from tokenloom_server.api.openai.choice_text import ChoiceText
from tokenloom_server.api.openai.envelope import Envelope
from tokenloom_server.api.openai.token_logprobs import TokenSpelling
from tokenloom_server.api.openai.usage import UsageBody


class ChatResponseBody(TypedDict):
    """All choices."""

    id: str
    object: str
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChoiceBody]
    usage: UsageBody
    prompt_token_ids: NotRequired[list[int]]
    warnings: NotRequired[list[str]]


class ChatAnswer(Answer):
    """Messages."""

    object_name = "chat.completion"
    chunk_name = "chat.completion.chunk"

    def __init__(
        self,
        body: ChatBody,
        plan: AnswerPlan,
        envelope: Envelope,
        router: Router,
        streams: Sequence[Stream],
    ) -> None:
        super().__init__(
            envelope,
            streams,
            num_sequences=body.num_choices,
            options=body,
            words=body.words,
        )
        self._body = body
        self._plan = plan
        self._router = router
        self._spelling = TokenSpelling(router.tokenizer) if body.logprobs else None
        self._choices = [self._choice(index, stream) for index, stream in enumerate(streams)]
        self._begun: set[int] = set()

    def push(self, place: int, output: SequenceOutput) -> list[Body]:
        """Take an output of the stream at a place; return the chunks that it makes."""
        self._count(output)
        choice = self._choices[place]
        parts = choice.push(output)
        self.usage.reasoning_tokens = sum(choice.reasoning_tokens for choice in self._choices)
        if not self._body.stream:
            return []
        chunks: list[Body] = []
        if place not in self._begun:
            ids = {"prompt_token_ids": self._prompt_ids} if self._body.return_token_ids else {}
            chunks.append(self._chunk(choice.begin(), **({} if self._begun else ids)))
            self._begun.add(place)
        return chunks + [self._chunk(part) for part in parts]

    def whole(self) -> Body:
        """The whole, once all outputs were taken."""
        ids = {"prompt_token_ids": self._prompt_ids} if self._body.return_token_ids else {}
        return self._whole([choice.whole for choice in self._choices], **ids)

    @property
    def _prompt_ids(self) -> list[int]:
        return self.prompts[0].request.prompt_ids

    def _choice(self, index: int, stream: Stream) -> ChatChoice:
        text = ChoiceText(
            stream.request.stopping,
            frozenset(self._router.model.eos_token_ids),
            keeps_stop=bool(self._body.include_stop_str_in_output),
            skips_special_tokens=self._body.skip_special_tokens is not False,
            is_mark=self._plan.is_mark,
        )
        return ChatChoice(
            index,
            text,
            self._plan,
            spelling=self._spelling,
            returns_ids=bool(self._body.return_token_ids),
        )
