"""The routes that tokenize."""

from __future__ import annotations

from typing import Annotated

import msgspec
from fastapi import APIRouter, Body
from pydantic import Field
from starlette.responses import Response
from typing_extensions import TypedDict

from tokenloom_router.router import Router
from tokenloom_server.api.examples import CHAT_TOKENIZE_EXAMPLES, TOKENIZE_EXAMPLES
from tokenloom_server.api.openai.chat_request import ChatBody
from tokenloom_server.api.openai.routes import OpenAIResponses
from tokenloom_server.body_route import StrictJsonRoute
from tokenloom_server.errors import ErrorBody
from tokenloom_server.settings import Settings
from tokenloom_server.unknown_fields import OpenBody, UnknownFields


class TokenizeBody(OpenBody):
    """A text to tokenize."""

    inputs: str
    add_special_tokens: bool = Field(
        default=True, description="Add what the model expects around a prompt (not in TGI)"
    )


class SimpleTokenBody(TypedDict):
    """A token, and the bytes of the text's UTF-8 form that it covers."""

    id: int
    text: str
    start: int
    stop: int


class ChatTokensBody(TypedDict):
    """The prompt that the chat template makes of a chat."""

    tokenize_response: list[SimpleTokenBody]
    templated_text: str


def tokenize_routes(router: Router, settings: Settings, unknown: UnknownFields) -> APIRouter:
    """POST /tokenize and /chat_tokenize."""
    chats = OpenAIResponses(router, settings)
    routes = APIRouter(route_class=StrictJsonRoute, tags=["Tokenize"])

    @routes.post(
        "/tokenize",
        responses={200: {"model": list[SimpleTokenBody]}, 422: {"model": ErrorBody}},
    )
    async def tokenize(
        body: Annotated[TokenizeBody, Body(openapi_examples=TOKENIZE_EXAMPLES)],
    ) -> Response:
        """The tokens of a text, with their places in it."""
        headers = unknown.headers(body)
        spans = await router.tokenize(body.inputs, add_special_tokens=body.add_special_tokens)
        return Response(msgspec.json.encode(spans), headers=headers, media_type="application/json")

    @routes.post(
        "/chat_tokenize",
        responses={200: {"model": ChatTokensBody}, 422: {"model": ErrorBody}},
    )
    async def chat_tokenize(
        body: Annotated[ChatBody, Body(openapi_examples=CHAT_TOKENIZE_EXAMPLES)],
    ) -> Response:
        """The prompt of a chat, and its last `truncate_prompt_tokens` tokens (default: all)."""
        request = await chats.chat_request(body)
        assert request.chat is not None
        text, spans = await router.tokenize_chat(request.chat)
        if request.truncate is not None:
            spans = spans[-request.truncate :]
        answer = {"tokenize_response": spans, "templated_text": text}
        return Response(msgspec.json.encode(answer), media_type="application/json")

    return routes
