"""An entry: one submitted sequence and the bounded stream of its outputs."""

from __future__ import annotations

from collections.abc import Callable

import anyio

from tokenloom_engine.messages import SequenceOutput, Submit
from tokenloom_engine.request_id import request_id
from tokenloom_router.errors import (
    ConstraintError,
    GenerationError,
    IncompleteGenerationError,
    RequestError,
    ValidationError,
)
from tokenloom_router.request import Timings, ValidRequest

_SPARE_OUTPUTS = 2
"""A first output with the prompt alone and a last one without a token may come beside the rest."""


class Entry:
    """The demultiplexer puts outputs in, one reader takes them out; neither waits for the other.

    The stream has room for every output that `max_new_tokens` allows, so it can only overflow if
    the engine breaks its word.
    """

    __slots__ = (
        "_failure",
        "_receiver",
        "_sender",
        "id",
        "on_end",
        "output_at",
        "prefill_tokens",
        "request",
        "request_id",
        "timings",
    )

    def __init__(
        self,
        id: int,
        request: ValidRequest,
        timings: Timings,
        on_end: Callable[[], None],
        prefill_tokens: int,
    ) -> None:
        self.id = id
        self.request = request
        self.request_id = request_id.get()
        """Of the task that made it."""
        self.timings = timings
        self.on_end = on_end
        """To be called once, when the engine is done with the sequence."""
        self.prefill_tokens = prefill_tokens
        """Tokens of the prompt that the engine is expected to compute for this sequence."""
        self.output_at = 0.0
        """When it last got tokens."""
        self._failure: RequestError | None = None
        self._sender, self._receiver = anyio.create_memory_object_stream[SequenceOutput](
            request.stopping.max_new_tokens + _SPARE_OUTPUTS
        )

    @property
    def max_tokens(self) -> int:
        """Tokens that the sequence may come to hold."""
        return self.request.input_length + self.request.stopping.max_new_tokens

    def submit_message(self) -> Submit:
        """What the engine needs to know."""
        request = self.request
        return Submit(
            id=self.id,
            prompt_ids=request.prompt_ids,
            sampling=request.sampling,
            stopping=request.stopping,
            logprobs=request.logprobs,
            constraint=request.constraint,
            forced_tokens=request.forced_tokens,
            logits_processors=request.logits_processors,
            request_id=self.request_id,
        )

    def put(self, output: SequenceOutput, now: float) -> None:
        """Hand an output to the reader. Raise anyio.WouldBlock if there are too many."""
        timings = self.timings
        if output.started_at is not None and not timings.started_at:
            timings.started_at = output.started_at
        if output.tokens:
            self.output_at = now
            timings.num_tokens += len(output.tokens)
            if not timings.first_token_at:
                timings.first_token_at = now
        if output.finish is not None:
            timings.finished_at = now
        self._sender.send_nowait(output)

    def fail(self, error: RequestError) -> None:
        """End the stream with `error`, after the outputs that are there."""
        self._failure = error
        self._sender.close()

    async def receive(self) -> SequenceOutput:
        """Return the next output. Raise RequestError if there will be none."""
        try:
            output = await self._next()
        except anyio.EndOfStream:
            raise self._failure or IncompleteGenerationError() from None
        if output.refusal is not None:
            raise ValidationError(output.refusal)
        if output.error is not None:
            kind = ConstraintError if output.is_constraint_error else GenerationError
            raise kind(output.error)
        return output

    def close(self) -> None:
        """Drop what was not read."""
        self._sender.close()
        self._receiver.close()

    async def _next(self) -> SequenceOutput:
        try:
            return self._receiver.receive_nowait()
        except anyio.WouldBlock:
            return await self._receiver.receive()
