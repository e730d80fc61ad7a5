"""The events that a streamed generation sends, as TGI has them."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator
from typing import NotRequired

import msgspec
from anyio.lowlevel import checkpoint
from typing_extensions import TypedDict

from tokenloom_engine.messages import Finish, FinishReason, SequenceOutput, Token
from tokenloom_router.errors import IncompleteGenerationError, RequestError
from tokenloom_router.request import ValidRequest
from tokenloom_server.api.generate_response import (
    ConstraintBody,
    TokenBody,
    add_constraint_details,
    token_body,
)
from tokenloom_server.errors import error_body, json_error

FAIR_TOKENS = 8
"""A stream with many outputs waiting gives way to the other streams after so many tokens."""
INCOMPLETE = json_error("Incomplete generation stream", "incomplete_generation_stream")


class StreamDetailsBody(ConstraintBody):
    """How the text came about."""

    finish_reason: FinishReason
    generated_tokens: int
    seed: int | None
    input_length: int


class StreamEventBody(TypedDict):
    """One token. The last one has the whole text, `details` if they were asked for, and what the
    client should know of its request.
    """

    index: int
    token: TokenBody
    top_tokens: NotRequired[list[TokenBody]]
    generated_text: str | None
    details: StreamDetailsBody | None
    warnings: NotRequired[list[str]]


class StreamEvents:
    """Turns the outputs of one sequence into chunks of bytes, one a step."""

    def __init__(
        self, request: ValidRequest, *, prefix: str, with_details: bool, eos_token_id: int
    ) -> None:
        self._request = request
        self._prefix = prefix
        self._with_details = with_details
        self._end_token = Token(eos_token_id, "", logprob=0.0, special=True)
        self._index = 0

    async def chunks(
        self, first: SequenceOutput, others: AsyncIterable[SequenceOutput]
    ) -> AsyncIterator[bytes]:
        """All tokens of an output in one chunk; after an error, an error event."""
        yield self._chunk(first)
        try:
            async for output in others:
                yield self._chunk(output)
                if self._index % FAIR_TOKENS == 0:
                    await checkpoint()
        except IncompleteGenerationError:
            yield _event(INCOMPLETE)
        except RequestError as error:
            yield _event(error_body(error))

    def _chunk(self, output: SequenceOutput) -> bytes:
        tokens = output.tokens
        if output.finish is not None and not tokens:
            # The end came by itself: a grammar that allows nothing more. TGI's last event has a
            # token, so ours says where the model would have ended.
            tokens = [self._end_token]
        last = len(tokens) - 1
        return b"".join(
            self._token_event(token, output.finish if position == last else None)
            for position, token in enumerate(tokens)
        )

    def _token_event(self, token: Token, finish: Finish | None) -> bytes:
        self._index += 1
        body: StreamEventBody = {
            "index": self._index,
            "token": token_body(token),
            "generated_text": self._prefix + finish.generated_text if finish else None,
            "details": self._details(finish) if finish and self._with_details else None,
        }
        if token.top:
            body["top_tokens"] = [token_body(top) for top in token.top]
        if finish and self._request.warnings:
            body["warnings"] = self._request.warnings
        return _event(msgspec.json.encode(body))

    def _details(self, finish: Finish) -> StreamDetailsBody:
        body: StreamDetailsBody = {
            "finish_reason": finish.reason,
            "generated_tokens": finish.generated_tokens,
            "seed": self._request.seed,
            "input_length": self._request.input_length,
        }
        add_constraint_details(body, self._request, finish)
        return body


def _event(data: bytes) -> bytes:
    return b"data: " + data + b"\n\n"
