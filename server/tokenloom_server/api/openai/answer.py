"""Answers: they turn the outputs of a request's sequences into OpenAI's bodies."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from tokenloom_engine.messages import SequenceOutput
from tokenloom_router.stream import Stream
from tokenloom_server.api.openai.envelope import SYSTEM_FINGERPRINT, Envelope
from tokenloom_server.api.openai.errors import Words
from tokenloom_server.api.openai.sampling import SamplingFields
from tokenloom_server.api.openai.usage import Usage

Body = Mapping[str, Any]


class Answer(ABC):
    """An answer in the making. It may be asked for its chunks or for the whole: the whole is what
    the chunks come to, so that both say the same.
    """

    object_name: str
    """Of the whole."""
    chunk_name: str

    def __init__(
        self,
        envelope: Envelope,
        streams: Sequence[Stream],
        *,
        num_sequences: int,
        options: SamplingFields,
        words: Words,
    ) -> None:
        """`num_sequences` of the streams, one behind the other, belong to each prompt."""
        self._words = words
        self._envelope = envelope
        self.prompts = streams[::num_sequences]
        """One stream of each prompt."""
        self._options = options
        self.usage = Usage(self.prompts)

    @abstractmethod
    def push(self, place: int, output: SequenceOutput) -> list[Body]:
        """Take an output of the stream at a place; return the chunks that it makes."""

    @abstractmethod
    def whole(self) -> Body:
        """The whole, once all outputs were taken."""

    @property
    def last_chunk(self) -> Body:
        """The usage, without choices."""
        return {**self._frame(self.chunk_name), "choices": [], "usage": self.usage.body()}

    def _count(self, output: SequenceOutput) -> None:
        forced = sum(token.forced for token in output.tokens)
        self.usage.add(len(output.tokens), forced)

    def _chunk(self, choice: Body, **more: object) -> Body:
        body = {**self._frame(self.chunk_name), "choices": [choice], **more}
        if self._options.wants_usage_always:
            body["usage"] = self.usage.body()
        elif self._options.wants_usage:
            body["usage"] = None
        if choice["finish_reason"] is not None:
            body |= self._warnings
        return body

    def _whole(self, choices: Sequence[Body], **more: object) -> Body:
        frame = self._frame(self.object_name)
        return {
            **frame,
            "choices": choices,
            "usage": self.usage.body(),
            **more,
            **self._warnings,
        }

    @property
    def _warnings(self) -> dict[str, list[str]]:
        """What the client should know of its request, if there is something."""
        warnings = [
            self._words.warning(text) for stream in self.prompts for text in stream.request.warnings
        ]
        return {"warnings": warnings} if warnings else {}

    def _frame(self, name: str) -> dict[str, Any]:
        envelope = self._envelope
        return {
            "id": envelope.id,
            "object": name,
            "created": envelope.created,
            "model": envelope.model,
            "system_fingerprint": SYSTEM_FINGERPRINT,
        }
