"""The answer of /v1/completions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NotRequired

from typing_extensions import TypedDict

from tokenloom_engine.messages import SequenceOutput
from tokenloom_router.router import Router
from tokenloom_router.stream import Stream
from tokenloom_server.api.openai.answer import Answer, Body
from tokenloom_server.api.openai.choice_text import ChoiceText
from tokenloom_server.api.openai.completion_choice import (
    CompletionChoice,
    CompletionChoiceBody,
    joined,
)
from tokenloom_server.api.openai.completion_request import CompletionBody
from tokenloom_server.api.openai.envelope import Envelope
from tokenloom_server.api.openai.token_logprobs import CompletionOffsets, TokenSpelling
from tokenloom_server.api.openai.usage import UsageBody


class CompletionResponseBody(TypedDict):
    """All choices, those of the first prompt first."""

    id: str
    object: str
    created: int
    model: str
    system_fingerprint: str
    choices: list[CompletionChoiceBody]
    usage: UsageBody
    warnings: NotRequired[list[str]]


class CompletionAnswer(Answer):
    """Texts."""

    object_name = "text_completion"
    chunk_name = "text_completion"

    def __init__(
        self, body: CompletionBody, envelope: Envelope, router: Router, streams: Sequence[Stream]
    ) -> None:
        super().__init__(
            envelope,
            streams,
            num_sequences=body.num_sequences,
            options=body,
            words=body.words,
        )
        self._body = body
        self._router = router
        self._spelling = TokenSpelling(router.tokenizer)
        self._choices = [self._choice(index, stream) for index, stream in enumerate(streams)]
        self._wholes: list[CompletionChoiceBody | None] = [None] * len(streams)

    def push(self, place: int, output: SequenceOutput) -> list[Body]:
        """Take an output of the stream at a place; return the chunks that it makes."""
        if self._body.max_tokens != 0:
            self._count(output)
        part = self._choices[place].push(output)
        if part is None:
            return []
        if not self._body.stream:
            self._wholes[place] = joined(self._wholes[place], part)
        return [self._chunk(part)]

    def whole(self) -> Body:
        """The whole, once all outputs were taken."""
        per_prompt, kept = self._body.num_sequences, self._body.num_choices
        places = range(len(self._choices))
        best: list[int] = []
        for first in places[::per_prompt]:
            group = list(places[first : first + per_prompt])
            if per_prompt > kept:
                group.sort(key=lambda place: self._choices[place].mean_logprob, reverse=True)
            best += group[:kept]
        choices = [choice for place in best if (choice := self._wholes[place]) is not None]
        for index, choice in enumerate(choices):
            choice["index"] = index
        return self._whole(choices)

    def _choice(self, index: int, stream: Stream) -> CompletionChoice:
        body, request = self._body, stream.request
        text = ChoiceText(
            request.stopping,
            frozenset(self._router.model.eos_token_ids),
            keeps_stop=bool(body.include_stop_str_in_output),
            skips_special_tokens=body.skip_special_tokens is not False,
        )
        wants_offsets = body.logprobs is not None
        return CompletionChoice(
            index,
            text,
            echo=self._echo(stream) if body.echo else None,
            offsets=CompletionOffsets(self._spelling, has_constraint=request.constraint is not None)
            if wants_offsets
            else None,
            prompt_ids=request.prompt_ids if body.return_token_ids else None,
            shows_output=body.max_tokens != 0,
        )

    def _echo(self, stream: Stream) -> str:
        request = stream.request
        return request.inputs or self._router.tokenizer.decode(request.prompt_ids)
