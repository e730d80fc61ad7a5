"""The route of Vertex AI: several prompts or chats in one request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, NotRequired

import msgspec
from fastapi import APIRouter, Body
from pydantic import Discriminator, Field, Tag
from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from typing_extensions import TypedDict

from tokenloom_router.errors import ValidationError
from tokenloom_router.request import GenerateRequest
from tokenloom_router.router import Router
from tokenloom_server.api.client import client_address
from tokenloom_server.api.examples import VERTEX_EXAMPLES
from tokenloom_server.api.generate import ERRORS
from tokenloom_server.api.generate_request import GenerateBody
from tokenloom_server.api.headers import compute_type, summed_headers
from tokenloom_server.api.items import Items
from tokenloom_server.api.openai.chat_request import ChatBody
from tokenloom_server.api.openai.routes import OpenAIResponses
from tokenloom_server.body_route import StrictJsonRoute
from tokenloom_server.disconnect import cancelled_on_disconnect
from tokenloom_server.settings import Settings
from tokenloom_server.unknown_fields import OpenBody, UnknownFields


def _kind(instance: object) -> str:
    return "chat" if isinstance(instance, dict) and "messages" in instance else "generate"


Instance = Annotated[
    Annotated[GenerateBody, Tag("generate")] | Annotated[ChatBody, Tag("chat")],
    Discriminator(_kind),
]


class VertexBody(OpenBody):
    """What to generate from: each of them by itself."""

    instances: Items[Instance] = Field(
        description="Bodies of /generate or of /v1/chat/completions; as many as the server takes "
        "requests at once"
    )

    async def to_requests(self, router: Router, chats: OpenAIResponses) -> list[GenerateRequest]:
        """In the router's words. Raises ValidationError."""
        limit = router.limits.max_concurrent_requests
        if not 1 <= len(self.instances) <= limit:
            raise ValidationError(
                f"`instances` must have > 0 and <= {limit} items. Given: {len(self.instances)}"
            )
        return [await _to_request(instance, chats) for instance in self.instances]

    def prefixes(self) -> list[str]:
        """What stands in front of each text: the prompt, or nothing."""
        return [
            instance.inputs
            if isinstance(instance, GenerateBody) and instance.parameters.return_full_text
            else ""
            for instance in self.instances
        ]


class VertexResponseBody(TypedDict):
    """The texts, in the order of the instances."""

    predictions: list[str]
    warnings: NotRequired[list[str]]
    """What lenient schemas left out, each with its instance."""


class VertexResponse(Response):
    """Generates all texts while it is sent, or none of them."""

    media_type = "application/json"

    def __init__(
        self,
        router: Router,
        requests: list[GenerateRequest],
        prefixes: list[str],
        compute_type: str,
        headers: Mapping[str, str],
    ) -> None:
        super().__init__()
        self._router = router
        self._requests = requests
        self._prefixes = prefixes
        self._compute_type = compute_type
        self._shown_headers = headers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        client = client_address(scope)
        requests = [replace(request, client=client) for request in self._requests]
        async with (
            cancelled_on_disconnect(receive),
            self._router.streams(requests) as streams,
        ):
            generations = [await stream.collect() for stream in streams]
            texts = [generation.finish.generated_text for generation in generations]
            body: VertexResponseBody = {
                "predictions": [a + b for a, b in zip(self._prefixes, texts, strict=True)]
            }
            warnings = [
                f"instances[{index}]: {warning}"
                for index, stream in enumerate(streams)
                for warning in stream.request.warnings
            ]
            if warnings:
                body["warnings"] = warnings
            answer = Response(
                msgspec.json.encode(body),
                headers={
                    **summed_headers(
                        [stream.request for stream in streams],
                        [stream.timings for stream in streams],
                        generations,
                        self._compute_type,
                    ),
                    **self._shown_headers,
                },
                media_type=self.media_type,
            )
            await answer(scope, receive, send)


def vertex_routes(router: Router, settings: Settings, unknown: UnknownFields) -> APIRouter:
    """POST /vertex, and the path that Vertex AI chooses."""
    chats = OpenAIResponses(router, settings)
    routes = APIRouter(route_class=StrictJsonRoute, tags=["Generate"], responses=ERRORS)

    @routes.post(
        "/vertex",
        response_class=VertexResponse,
        status_code=200,
        responses={200: {"model": VertexResponseBody}},
    )
    async def vertex(
        body: Annotated[VertexBody, Body(openapi_examples=VERTEX_EXAMPLES)],
    ) -> Response:
        """Generate from several prompts at once."""
        headers = unknown.headers(body)
        requests = await body.to_requests(router, chats)
        shown_type = compute_type(router, settings)
        return VertexResponse(router, requests, body.prefixes(), shown_type, headers)

    if settings.predict_route:
        routes.add_api_route(
            settings.predict_route,
            vertex,
            methods=["POST"],
            response_class=VertexResponse,
            include_in_schema=False,
        )
    return routes


async def _to_request(instance: GenerateBody | ChatBody, chats: OpenAIResponses) -> GenerateRequest:
    """Refuses what a prediction, which is a text and nothing more, could not show."""
    if isinstance(instance, ChatBody):
        unseen: dict[str, object] = {
            "n": instance.num_choices != 1,
            "logprobs": instance.logprobs,
            "stream": instance.stream,
            "tools": instance.tools,
            "logprobs_mode": instance.logprobs_mode == "processed",
            "return_token_ids": instance.return_token_ids,
            "request_id": instance.request_id is not None,
            "skip_special_tokens": instance.skip_special_tokens is False,
            "include_stop_str_in_output": instance.include_stop_str_in_output is False,
        }
        _refuse(unseen)
        return await chats.chat_request(instance)
    given = instance.parameters
    unseen = {
        "best_of": given.best_of not in (None, 1),
        "top_n_tokens": given.top_n_tokens,
        "details": given.details,
        "decoder_input_details": given.decoder_input_details,
        "logprobs_mode": given.logprobs_mode == "processed",
    }
    _refuse(unseen)
    return instance.to_request(stream=False)


def _refuse(unseen: dict[str, object]) -> None:
    for name, is_wanted in unseen.items():
        if is_wanted:
            raise ValidationError(f"`{name}` is not allowed for this endpoint")
