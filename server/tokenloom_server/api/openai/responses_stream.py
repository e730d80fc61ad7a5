"""The stream of /v1/responses: events with names, and none that says that there are no more."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from tokenloom_server.api.openai.answer import Answer, Body
from tokenloom_server.api.openai.errors import Fault
from tokenloom_server.api.openai.response import StreamedAnswer
from tokenloom_server.api.openai.responses_answer import ResponsesAnswer


class StreamedResponse(StreamedAnswer):
    """Sends the events of each step in one write."""

    end = b""

    def _encoded(self, chunks: Sequence[Body]) -> bytes:
        return b"".join(
            b"event: " + chunk["type"].encode() + b"\ndata: " + msgspec.json.encode(chunk) + b"\n\n"
            for chunk in chunks
        )

    def _failure(self, answer: Answer, fault: Fault) -> bytes:
        assert isinstance(answer, ResponsesAnswer)
        return self._encoded(answer.failed(fault))
