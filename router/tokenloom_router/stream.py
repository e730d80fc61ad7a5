"""The outputs of running sequences, for whoever waits for them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple

import anyio

from tokenloom_engine.messages import Finish, SequenceOutput, Token
from tokenloom_router.entry import Entry
from tokenloom_router.errors import RequestError
from tokenloom_router.request import Generation, Timings, ValidRequest


class MergedOutput(NamedTuple):
    """An output, and the place of its stream among those that were merged."""

    place: int
    output: SequenceOutput


class Stream:
    """Iterates over a sequence's outputs; ends after the one with `finish`.

    Raises GenerationError if the engine fails, ConstraintError if the constraint does. For one
    reader.
    """

    def __init__(self, entry: Entry) -> None:
        self._entry = entry
        self.finish: Finish | None = None
        """The sequence's end, once it was read."""
        self.error: RequestError | None = None
        """What the stream raised."""
        self.cached_tokens = 0
        """Prompt tokens that the prefix cache had; known from the first output on."""

    @property
    def request(self) -> ValidRequest:
        """The request as it was validated."""
        return self._entry.request

    @property
    def timings(self) -> Timings:
        """When the request passed each station, as far as it has come."""
        return self._entry.timings

    def __aiter__(self) -> Stream:
        return self

    async def __anext__(self) -> SequenceOutput:
        if self.finish is not None:
            raise StopAsyncIteration
        if self.error is not None:
            raise self.error
        try:
            output = await self._entry.receive()
        except RequestError as error:
            self.error = error
            raise
        self.finish = output.finish
        self.cached_tokens += output.cached_tokens or 0
        return output

    async def collect(self) -> Generation:
        """Read to the end and return the whole."""
        tokens: list[Token] = []
        prompt: list[Token] = []
        async for output in self:
            tokens += output.tokens
            prompt += output.prompt or ()
        assert self.finish is not None, "a stream ends after its finish or raises"
        return Generation(
            tokens=tokens,
            prompt=prompt,
            finish=self.finish,
            seed=self.request.seed,
            cached_tokens=self.cached_tokens,
        )


@asynccontextmanager
async def merged(streams: Sequence[Stream]) -> AsyncIterator[AsyncIterator[MergedOutput]]:
    """The outputs of several streams as they come, each with its stream's place among them.

    The first error of a stream ends the whole.
    """
    if len(streams) == 1:
        yield _numbered(streams[0])
        return
    sender, receiver = anyio.create_memory_object_stream[MergedOutput | RequestError](len(streams))

    async def pump(index: int, stream: Stream) -> None:
        try:
            async for output in stream:
                await sender.send(MergedOutput(index, output))
        except RequestError as error:
            await sender.send(error)

    async def outputs() -> AsyncIterator[MergedOutput]:
        left = len(streams)
        while left:
            item = await receiver.receive()
            if isinstance(item, RequestError):
                raise item
            left -= item.output.finish is not None
            yield item

    try:
        async with sender, receiver, anyio.create_task_group() as tasks:
            for index, stream in enumerate(streams):
                tasks.start_soon(pump, index, stream)
            yield outputs()
            tasks.cancel_scope.cancel()
    except BaseExceptionGroup as group:  # the block's own exception comes out as it is
        error, *others = group.exceptions
        if others:
            raise
        raise error from error.__cause__


async def _numbered(stream: Stream) -> AsyncIterator[MergedOutput]:
    async for output in stream:
        yield MergedOutput(0, output)
