"""The responses that generate: each owns its generation from the permit to the last byte.

The work is done while the response is sent, not before it is made. So the router's context is a
plain `with` block around it, and however the block is left, the sequence is gone: at the end, by
an error, because the client left, or because the server stops.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tokenloom_engine.messages import SequenceOutput
from tokenloom_router.errors import IncompleteGenerationError
from tokenloom_router.request import GenerateRequest
from tokenloom_router.router import Router
from tokenloom_router.stream import Stream
from tokenloom_server.api.client import client_address
from tokenloom_server.api.event_stream import EventStream
from tokenloom_server.api.generate_response import response_body
from tokenloom_server.api.headers import response_headers, stream_headers
from tokenloom_server.api.stream_events import StreamEvents
from tokenloom_server.disconnect import cancelled_on_disconnect, never_disconnected


@dataclass(frozen=True, slots=True, kw_only=True)
class Presentation:
    """What a client wants to see of a generation."""

    prefix: str
    """Stands in front of each text: the prompt, or nothing."""
    with_details: bool
    as_list: bool = False
    """Whether a whole response comes as the one element of a list."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Headers of the response that depend on the body alone."""


class GenerationResponse(Response):
    """A response that generates while it is sent."""

    def __init__(
        self, router: Router, request: GenerateRequest, shown: Presentation, compute_type: str
    ) -> None:
        super().__init__()
        self._router = router
        self._request = request
        self._shown = shown
        self._compute_type = compute_type


class WholeResponse(GenerationResponse):
    """Generates, then sends one JSON body."""

    media_type = "application/json"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = replace(self._request, client=client_address(scope))
        async with cancelled_on_disconnect(receive):
            response = await self._router.generate(request)
            shown = self._shown
            body = response_body(response, prefix=shown.prefix, with_details=shown.with_details)
            answer = Response(
                msgspec.json.encode([body] if shown.as_list else body),
                headers={**response_headers(response, self._compute_type), **shown.headers},
                media_type=self.media_type,
            )
            await answer(scope, receive, send)


class StreamedResponse(GenerationResponse):
    """Sends the tokens of each step as events, in one write.

    What goes wrong before the first token is raised and so gets its real HTTP status.
    """

    media_type = "text/event-stream"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = replace(self._request, client=client_address(scope))
        async with (
            cancelled_on_disconnect(receive),
            self._router.stream(request) as stream,
        ):
            first = await _first_tokens(stream)
            answer = self._events(stream, first)
            await answer(scope, never_disconnected, send)

    def _events(self, stream: Stream, first: SequenceOutput) -> EventStream:
        events = StreamEvents(
            stream.request,
            prefix=self._shown.prefix,
            with_details=self._shown.with_details,
            eos_token_id=next(iter(self._router.model.eos_token_ids), 0),
        )
        headers = {
            **stream_headers(stream.request, stream.timings, self._compute_type),
            **self._shown.headers,
        }
        return EventStream(events.chunks(first, stream), headers)


async def _first_tokens(stream: Stream) -> SequenceOutput:
    """The first output that has something to send."""
    async for output in stream:
        if output.tokens or output.finish is not None:
            return output
    raise IncompleteGenerationError
