"""The responses that generate: each owns its sequences from the permits to the last byte.

The work is done while the response is sent, as for TGI's routes: however that ends, the router's
context is left, and the sequences are gone.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace

import msgspec
from anyio.lowlevel import checkpoint
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tokenloom_router.errors import IncompleteGenerationError, RequestError
from tokenloom_router.request import GenerateRequest, Generation
from tokenloom_router.router import Router
from tokenloom_router.stream import MergedOutput, Stream, merged
from tokenloom_server.api.client import client_address
from tokenloom_server.api.event_stream import EventStream
from tokenloom_server.api.headers import stream_headers, summed_headers
from tokenloom_server.api.openai.answer import Answer, Body
from tokenloom_server.api.openai.errors import Fault, Words
from tokenloom_server.api.stream_events import FAIR_TOKENS
from tokenloom_server.disconnect import cancelled_on_disconnect, never_disconnected

DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What is to be generated, and how it is answered."""

    router: Router
    requests: Sequence[GenerateRequest]
    answer: Callable[[Sequence[Stream]], Answer]
    words: Words
    compute_type: str
    wants_usage: bool = False
    """Whether a stream ends with the usage."""


class OrderResponse(Response):
    """A response that generates while it is sent."""

    def __init__(self, order: Order) -> None:
        super().__init__()
        self._order = order

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Errors before the first byte get their status here; later ones are the stream's."""
        order = self._order
        client = client_address(scope)
        requests = [replace(request, client=client) for request in order.requests]
        try:
            async with (
                cancelled_on_disconnect(receive),
                order.router.streams(requests) as streams,
            ):
                await self._answer(streams, scope, send)
        except RequestError as error:
            await Fault.of(error, order.words).response()(scope, receive, send)

    async def _answer(self, streams: Sequence[Stream], scope: Scope, send: Send) -> None:
        raise NotImplementedError


class WholeAnswer(OrderResponse):
    """Generates, then sends one JSON body."""

    media_type = "application/json"

    async def _answer(self, streams: Sequence[Stream], scope: Scope, send: Send) -> None:
        answer = self._order.answer(streams)
        # All run at once. Each has its own buffer, so they can be read one by one.
        for place, stream in enumerate(streams):
            async for output in stream:
                answer.push(place, output)
        response = Response(
            msgspec.json.encode(answer.whole()),
            headers=self._costs(answer.prompts, streams),
            media_type=self.media_type,
        )
        await response(scope, never_disconnected, send)

    def _costs(self, prompts: Sequence[Stream], streams: Sequence[Stream]) -> dict[str, str]:
        return summed_headers(
            [stream.request for stream in prompts],
            [stream.timings for stream in prompts],
            [
                Generation(tokens=[], prompt=[], finish=stream.finish, seed=None)
                for stream in streams
                if stream.finish is not None
            ],
            self._order.compute_type,
        )


class StreamedAnswer(OrderResponse):
    """Sends the chunks of each step as events, in one write."""

    media_type = "text/event-stream"
    end = DONE

    async def _answer(self, streams: Sequence[Stream], scope: Scope, send: Send) -> None:
        answer = self._order.answer(streams)
        async with merged(streams) as outputs:
            first = await _first_tokens(outputs)
            response = EventStream(
                self._events(answer, first, outputs),
                stream_headers(streams[0].request, streams[0].timings, self._order.compute_type),
            )
            await response(scope, never_disconnected, send)

    async def _events(
        self, answer: Answer, first: MergedOutput, others: AsyncIterator[MergedOutput]
    ) -> AsyncIterator[bytes]:
        """All chunks of an output in one write; after an error, an error event."""
        yield self._encoded(answer.push(*first))
        num_outputs = 0
        try:
            async for place, output in others:
                if chunks := answer.push(place, output):
                    yield self._encoded(chunks)
                num_outputs += 1
                if num_outputs % FAIR_TOKENS == 0:
                    await checkpoint()
            if self._order.wants_usage:
                yield self._encoded([answer.last_chunk])
        except RequestError as error:
            yield self._failure(answer, Fault.of(error, self._order.words))
        yield self.end

    def _encoded(self, chunks: Sequence[Body]) -> bytes:
        return b"".join(_event(msgspec.json.encode(chunk)) for chunk in chunks)

    def _failure(self, _answer: Answer, fault: Fault) -> bytes:
        return _event(fault.json)


async def _first_tokens(outputs: AsyncIterator[MergedOutput]) -> MergedOutput:
    """The first output that has something to send."""
    async for merged_output in outputs:
        output = merged_output.output
        if output.tokens or output.finish is not None:
            return merged_output
    raise IncompleteGenerationError


def _event(data: bytes) -> bytes:
    return b"data: " + data + b"\n\n"
