"""One choice of a completion, as it grows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NotRequired

from typing_extensions import TypedDict

from tokenloom_engine.messages import SequenceOutput, Token
from tokenloom_server.api.openai.choice_text import ChoiceText
from tokenloom_server.api.openai.token_logprobs import (
    CompletionLogprobsBody,
    CompletionOffsets,
)

FinishReason = Literal["stop", "length"]


class CompletionChoiceBody(TypedDict):
    """A choice, or what a chunk adds to it. `stop_reason` is the request's stop string or token."""

    index: int
    text: str
    logprobs: CompletionLogprobsBody | None
    finish_reason: FinishReason | None
    stop_reason: NotRequired[str | int | None]
    token_ids: NotRequired[list[int]]
    prompt_token_ids: NotRequired[list[int]]
    captures: NotRequired[dict[str, str | list[str]]]


class CompletionChoice:
    """Makes bodies of a sequence's outputs."""

    def __init__(
        self,
        index: int,
        text: ChoiceText,
        *,
        echo: str | None,
        offsets: CompletionOffsets | None,
        prompt_ids: list[int] | None,
        shows_output: bool,
    ) -> None:
        """`echo` is the prompt's text, `offsets` is there if log-probabilities are wanted, and
        `prompt_ids` if token ids are.
        """
        self.index = index
        self._text = text
        self._echo = echo
        self._offsets = offsets
        self._prompt_ids = prompt_ids
        self._returns_ids = prompt_ids is not None
        self._shows_output = shows_output
        self._logprobs: list[float] = []

    @property
    def mean_logprob(self) -> float:
        """Of the tokens so far."""
        return sum(self._logprobs) / len(self._logprobs) if self._logprobs else float("-inf")

    def push(self, output: SequenceOutput) -> CompletionChoiceBody | None:
        """What an output adds, if anything."""
        self._logprobs += [t.logprob for t in output.tokens if t.logprob is not None]
        head, head_logprobs = self._take_echo(output.prompt)
        piece = self._text.push(output)
        finish = piece.finish
        if not self._shows_output:
            piece.text, piece.tokens, piece.ids = "", [], []
        if not (head or piece.text or piece.tokens or piece.ids or finish):
            return None
        body: CompletionChoiceBody = {
            "index": self.index,
            "text": head + piece.text,
            "logprobs": self._told(head_logprobs, piece.tokens),
            "finish_reason": None,
        }
        if finish is not None:
            is_cut = finish.reason == "length" or not self._shows_output
            body["finish_reason"] = "length" if is_cut else "stop"
            body["stop_reason"] = self._text.stop_reason
            if finish.captures:
                body["captures"] = finish.captures
        if self._returns_ids:
            body["token_ids"] = piece.ids
            if self._prompt_ids is not None:
                body["prompt_token_ids"], self._prompt_ids = self._prompt_ids, None
        return body

    def _take_echo(self, prompt: list[Token] | None) -> tuple[str, CompletionLogprobsBody | None]:
        """The prompt and its tokens, the first time."""
        if self._echo is None:
            return "", None
        echo, self._echo = self._echo, None
        return echo, self._offsets.prompt(prompt or [], echo) if self._offsets else None

    def _told(
        self, head: CompletionLogprobsBody | None, tokens: Sequence[Token]
    ) -> CompletionLogprobsBody | None:
        if self._offsets is None:
            return None
        body = self._offsets.output(tokens, skips_special=self._text.skips_special_tokens)
        return joined_logprobs(head, body)


def joined(
    first: CompletionChoiceBody | None, second: CompletionChoiceBody
) -> CompletionChoiceBody:
    """Two parts of a choice as one."""
    if first is None:
        return second
    body = first | second
    body["text"] = first["text"] + second["text"]
    body["logprobs"] = joined_logprobs(first["logprobs"], second["logprobs"])
    if "token_ids" in first and "token_ids" in second:
        body["token_ids"] = first["token_ids"] + second["token_ids"]
    return body


def joined_logprobs(
    first: CompletionLogprobsBody | None, second: CompletionLogprobsBody | None
) -> CompletionLogprobsBody | None:
    """Two parts of a text's tokens as one."""
    if first is None or second is None:
        return first or second
    body: CompletionLogprobsBody = {
        "tokens": first["tokens"] + second["tokens"],
        "token_logprobs": first["token_logprobs"] + second["token_logprobs"],
        "top_logprobs": first["top_logprobs"] + second["top_logprobs"],
        "text_offset": first["text_offset"] + second["text_offset"],
    }
    if "forced" in first and "forced" in second:
        body["forced"] = first["forced"] + second["forced"]
    return body
