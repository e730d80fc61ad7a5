"""The answer of /v1/responses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NotRequired

from typing_extensions import TypedDict

from tokenloom_engine.messages import Finish, SequenceOutput, Token
from tokenloom_router.router import Router
from tokenloom_router.stream import Stream
from tokenloom_server.answer_form import AnswerPlan
from tokenloom_server.answer_parser import AnswerEvent, Reasoning
from tokenloom_server.api.openai.answer import Answer, Body
from tokenloom_server.api.openai.choice_text import ChoiceText
from tokenloom_server.api.openai.envelope import Envelope
from tokenloom_server.api.openai.errors import Fault
from tokenloom_server.api.openai.responses_items import (
    CallItem,
    Event,
    MessageItem,
    OutputItem,
    ReasoningItem,
    Status,
)
from tokenloom_server.api.openai.responses_request import EchoBody, ResponsesBody
from tokenloom_server.api.openai.token_logprobs import TokenLogprobBody, TokenSpelling
from tokenloom_server.tools.call_parser import CallArguments, CallStart, Content


class InputTokensDetails(TypedDict):
    """`cached_tokens` is how many prompt tokens were not computed anew."""

    cached_tokens: int


class OutputTokensDetails(TypedDict):
    """How many stand before the answer, and how many the grammar left no choice about."""

    reasoning_tokens: int
    forced_tokens: NotRequired[int]


class ResponseUsageBody(TypedDict):
    """How many tokens a response took."""

    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class ResponseBody(EchoBody):
    """A response: its output, and what was asked for."""

    id: str
    object: str
    created_at: int
    status: str
    error: dict[str, Any] | None
    incomplete_details: dict[str, Any] | None
    model: str
    output: list[dict[str, Any]]
    usage: ResponseUsageBody | None


class WarnedResponseBody(ResponseBody):
    """A response to a request with schemas that lost keywords."""

    warnings: list[str]


class ResponsesAnswer(Answer):
    """Items, one behind the other."""

    def __init__(
        self,
        body: ResponsesBody,
        plan: AnswerPlan,
        envelope: Envelope,
        router: Router,
        streams: Sequence[Stream],
    ) -> None:
        super().__init__(
            envelope, streams, num_sequences=1, options=body.sampling(), words=body.words
        )
        self._echo = body.echo(router.sampling_defaults)
        self._plan = plan
        self._parser = plan.parser()
        self._spelling = TokenSpelling(router.tokenizer) if body.wants_logprobs else None
        self._text = ChoiceText(
            streams[0].request.stopping,
            frozenset(router.model.eos_token_ids),
            keeps_stop=False,
            skips_special_tokens=True,
            is_mark=plan.is_mark,
        )
        self._items: list[OutputItem] = []
        self._done: list[Event] = []
        """The bodies of the items that are closed."""
        self._waiting: list[Token] = []
        """Tokens whose text was not told yet."""
        self._finish: Finish | None = None
        self._num_events = 0

    def push(self, place: int, output: SequenceOutput) -> list[Body]:
        """Take an output of the one stream; return the events that it makes."""
        self._count(output)
        piece = self._text.push(output)
        self._waiting += piece.tokens
        events: list[Event] = []
        if not self._num_events:
            response = self._response("in_progress")
            events += [self._response_event(name, response) for name in ("created", "in_progress")]
        for answer_event in self._parser.push(piece.text):
            events += self._tell(answer_event)
        if self._parser.is_reasoning:
            self.usage.reasoning_tokens += len(output.tokens)
        if piece.finish is not None:
            events += self._end(piece.finish)
        return self._numbered(events)

    def whole(self) -> Body:
        """The response, once all outputs were taken."""
        return self._response("incomplete" if self._is_cut else "completed")

    def failed(self, fault: Fault) -> list[Body]:
        """The events of a response that breaks off."""
        error = {"type": "error", "code": fault.code, "message": fault.message}
        response = self._response("failed")
        response["error"] = {"code": "server_error", "message": fault.message}
        events = [{**error, "param": fault.param}, self._response_event("failed", response)]
        return self._numbered(events)

    @property
    def _is_cut(self) -> bool:
        return self._finish is not None and self._finish.reason == "length"

    def _tell(self, event: AnswerEvent) -> list[Event]:
        match event:
            case Content(text):
                events = self._open(MessageItem)
                return [*events, *self._items[-1].add(text, self._take_logprobs())]
            case Reasoning(text):
                events = self._open(ReasoningItem)
                self._waiting = []
                return [*events, *self._items[-1].add(text)]
            case CallStart(name):
                return self._begin(CallItem(len(self._items), self._plan.form.call_id(), name))
            case CallArguments(text):
                return self._items[-1].add(text)

    def _open(self, kind: type[MessageItem | ReasoningItem]) -> list[Event]:
        """Let the last item be of this kind."""
        if len(self._items) > len(self._done) and isinstance(self._items[-1], kind):
            return []
        return self._begin(kind(len(self._items)))

    def _begin(self, item: OutputItem) -> list[Event]:
        self._waiting = [] if isinstance(item, CallItem) else self._waiting
        events = self._close("completed")
        self._items.append(item)
        return [*events, *item.open()]

    def _close(self, status: Status) -> list[Event]:
        """End the last item, if it has not ended."""
        if len(self._items) == len(self._done):
            return []
        self._done.append(self._items[-1].body(status))
        return self._items[-1].close(status)

    def _end(self, finish: Finish) -> list[Event]:
        self._finish = finish
        events = [event for left in self._parser.flush() for event in self._tell(left)]
        if not self._items:
            events += self._open(MessageItem)
        events += self._close("incomplete" if self._is_cut else "completed")
        name = "incomplete" if self._is_cut else "completed"
        return [*events, self._response_event(name, self._response(name))]

    def _take_logprobs(self) -> list[TokenLogprobBody]:
        tokens, self._waiting = self._waiting, []
        if self._spelling is None:
            return []
        return [self._spelling.chat_logprob(token) for token in tokens]

    def _numbered(self, events: Sequence[Event]) -> list[Body]:
        first = self._num_events
        self._num_events += len(events)
        return [{**event, "sequence_number": first + i} for i, event in enumerate(events)]

    def _response_event(self, name: str, response: ResponseBody) -> Event:
        return {"type": f"response.{name}", "response": response}

    def _response(self, status: str) -> ResponseBody:
        envelope = self._envelope
        response: ResponseBody = {
            **self._echo,
            "id": f"resp_{envelope.number}",
            "object": "response",
            "created_at": envelope.created,
            "status": status,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if self._is_cut else None,
            "model": envelope.model,
            "output": list(self._done),
            "usage": None if status == "in_progress" else self._usage(),
        }
        if status == "in_progress" or not self._warnings:
            return response
        warned: WarnedResponseBody = {**response, "warnings": self._warnings["warnings"]}
        return warned

    def _usage(self) -> ResponseUsageBody:
        usage = self.usage.body()
        details = usage["completion_tokens_details"]
        output_details: OutputTokensDetails = {"reasoning_tokens": details["reasoning_tokens"]}
        if "forced_tokens" in details:
            output_details["forced_tokens"] = details["forced_tokens"]
        return {
            "input_tokens": usage["prompt_tokens"],
            "input_tokens_details": {
                "cached_tokens": usage["prompt_tokens_details"]["cached_tokens"]
            },
            "output_tokens": usage["completion_tokens"],
            "output_tokens_details": output_details,
            "total_tokens": usage["total_tokens"],
        }
