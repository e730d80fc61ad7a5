"""One choice of a chat, as it grows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, NotRequired

from typing_extensions import TypedDict

from tokenloom_engine.messages import Finish, SequenceOutput, Token
from tokenloom_server.answer_form import AnswerPlan
from tokenloom_server.answer_parser import AnswerEvent, Reasoning
from tokenloom_server.api.openai.choice_text import ChoiceText
from tokenloom_server.api.openai.token_logprobs import TokenLogprobBody, TokenSpelling
from tokenloom_server.tools.call_parser import CallArguments, CallStart, Content

FinishReason = Literal["stop", "length", "tool_calls"]


class FunctionBody(TypedDict):
    """A function and its arguments, or a piece of them."""

    name: NotRequired[str]
    arguments: str


class ToolCallBody(TypedDict):
    """A call, or what a chunk adds to it. Only chunks have `index`."""

    index: NotRequired[int]
    id: NotRequired[str]
    type: NotRequired[Literal["function"]]
    function: FunctionBody


class MessageBody(TypedDict):
    """The answer. `content` is null if there is none but calls of tools."""

    role: Literal["assistant"]
    content: str | None
    refusal: None
    reasoning_content: NotRequired[str]
    tool_calls: NotRequired[list[ToolCallBody]]


class DeltaBody(TypedDict, total=False):
    """What a chunk adds to an answer."""

    role: Literal["assistant"]
    content: str
    reasoning_content: str
    tool_calls: list[ToolCallBody]


class ChatLogprobsBody(TypedDict):
    """The tokens of an answer."""

    content: list[TokenLogprobBody]
    refusal: None


class ChatChunkChoiceBody(TypedDict):
    """What a chunk adds to a choice."""

    index: int
    delta: DeltaBody
    logprobs: ChatLogprobsBody | None
    finish_reason: FinishReason | None
    stop_reason: NotRequired[str | int | None]
    token_ids: NotRequired[list[int]]
    captures: NotRequired[dict[str, str | list[str]]]


class ChatChoiceBody(TypedDict):
    """A choice. `stop_reason` is the request's stop string or token that ended it."""

    index: int
    message: MessageBody
    logprobs: ChatLogprobsBody | None
    finish_reason: FinishReason | None
    stop_reason: NotRequired[str | int | None]
    token_ids: NotRequired[list[int]]
    captures: NotRequired[dict[str, str | list[str]]]


class ChatChoice:
    """Makes chunks of a sequence's outputs, and of the chunks the whole."""

    def __init__(
        self,
        index: int,
        text: ChoiceText,
        plan: AnswerPlan,
        *,
        spelling: TokenSpelling | None,
        returns_ids: bool,
    ) -> None:
        """`spelling` is there if log-probabilities are wanted."""
        self._index = index
        self._text = text
        self._plan = plan
        self._parser = plan.parser()
        self._spelling = spelling
        self._returns_ids = returns_ids
        self._num_calls = 0
        self.reasoning_tokens = 0
        """Tokens before the answer."""
        self._waiting: list[Token] = []
        """Tokens for the next chunk."""
        self._waiting_ids: list[int] = []
        message: MessageBody = {"role": "assistant", "content": None, "refusal": None}
        self._whole: ChatChoiceBody = {
            "index": index,
            "message": message,
            "logprobs": None if spelling is None else {"content": [], "refusal": None},
            "finish_reason": None,
        }

    def begin(self) -> ChatChunkChoiceBody:
        """The first chunk."""
        return {
            "index": self._index,
            "delta": {"role": "assistant", "content": ""},
            "logprobs": None,
            "finish_reason": None,
        }

    def push(self, output: SequenceOutput) -> list[ChatChunkChoiceBody]:
        """The chunks that an output makes."""
        piece = self._text.push(output)
        self._waiting += piece.tokens
        self._waiting_ids += piece.ids
        events = self._parser.push(piece.text)
        if self._parser.is_reasoning:
            self.reasoning_tokens += len(output.tokens)
        if piece.finish is not None:
            events = [*events, *self._parser.flush()]
        chunks = [self._chunk(delta) for delta in self._deltas(events)]
        if piece.finish is not None:
            chunks.append(self._end(piece.finish))
        for chunk in chunks:
            self._add(chunk)
        return chunks

    @property
    def whole(self) -> ChatChoiceBody:
        """What the chunks come to."""
        message = self._whole["message"]
        if message["content"] is None and "tool_calls" not in message:
            message["content"] = ""
        return self._whole

    def _deltas(self, events: Sequence[AnswerEvent]) -> Iterator[DeltaBody]:
        for event in events:
            match event:
                case Content(text):
                    yield {"content": text}
                case Reasoning(text):
                    yield {"reasoning_content": text}
                case CallStart(name):
                    self._num_calls += 1
                    call: ToolCallBody = {
                        "index": self._num_calls - 1,
                        "id": self._plan.form.call_id(),
                        "type": "function",
                        "function": {"name": name, "arguments": ""},
                    }
                    yield {"tool_calls": [call]}
                case CallArguments(text):
                    index = self._num_calls - 1
                    yield {"tool_calls": [{"index": index, "function": {"arguments": text}}]}

    def _end(self, finish: Finish) -> ChatChunkChoiceBody:
        chunk = self._chunk({})
        if finish.reason == "length":
            chunk["finish_reason"] = "length"
        else:
            chunk["finish_reason"] = "tool_calls" if self._parser.has_calls else "stop"
        chunk["stop_reason"] = self._text.stop_reason
        if finish.captures:
            chunk["captures"] = finish.captures
        return chunk

    def _chunk(self, delta: DeltaBody) -> ChatChunkChoiceBody:
        """A delta, with all tokens that wait for one."""
        chunk: ChatChunkChoiceBody = {
            "index": self._index,
            "delta": delta,
            "logprobs": None,
            "finish_reason": None,
        }
        if self._spelling is not None and self._waiting:
            content = [self._spelling.chat_logprob(token) for token in self._waiting]
            chunk["logprobs"] = {"content": content, "refusal": None}
        self._waiting = []
        if self._returns_ids:
            chunk["token_ids"], self._waiting_ids = self._waiting_ids, []
        return chunk

    def _add(self, chunk: ChatChunkChoiceBody) -> None:
        """Let the whole grow by a chunk."""
        whole, delta = self._whole, chunk["delta"]
        message = whole["message"]
        if "content" in delta:
            message["content"] = (message["content"] or "") + delta["content"]
        if "reasoning_content" in delta:
            known = message.get("reasoning_content", "")
            message["reasoning_content"] = known + delta["reasoning_content"]
        for call in delta.get("tool_calls", ()):
            _add_call(message.setdefault("tool_calls", []), call)
        if whole["logprobs"] is not None and chunk["logprobs"] is not None:
            whole["logprobs"]["content"] += chunk["logprobs"]["content"]
        if "token_ids" in chunk:
            whole.setdefault("token_ids", []).extend(chunk["token_ids"])
        if chunk["finish_reason"] is not None:
            whole["finish_reason"] = chunk["finish_reason"]
            whole["stop_reason"] = chunk.get("stop_reason")
            if "captures" in chunk:
                whole["captures"] = chunk["captures"]


def _add_call(calls: list[ToolCallBody], part: ToolCallBody) -> None:
    if "id" in part:
        calls.append({"id": part["id"], "type": "function", "function": part["function"].copy()})
    else:
        calls[-1]["function"]["arguments"] += part["function"]["arguments"]
