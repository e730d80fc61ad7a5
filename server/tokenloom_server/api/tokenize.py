"""The tokenize route."""

from __future__ import annotations

from typing import Annotated

import msgspec
from fastapi import APIRouter, Body
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response
from typing_extensions import TypedDict

from tokenloom_router.router import Router
from tokenloom_server.api.examples import TOKENIZE_EXAMPLES
from tokenloom_server.errors import ErrorBody
from tokenloom_server.json_body import StrictJsonRoute


class TokenizeBody(BaseModel):
    """A text to tokenize."""

    model_config = ConfigDict(strict=True, extra="forbid")

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


def tokenize_routes(router: Router) -> APIRouter:
    """POST /tokenize."""
    routes = APIRouter(route_class=StrictJsonRoute, tags=["Tokenize"])

    @routes.post(
        "/tokenize",
        responses={200: {"model": list[SimpleTokenBody]}, 422: {"model": ErrorBody}},
    )
    async def tokenize(
        body: Annotated[TokenizeBody, Body(openapi_examples=TOKENIZE_EXAMPLES)],
    ) -> Response:
        """The tokens of a text, with their places in it."""
        spans = await router.tokenize(body.inputs, add_special_tokens=body.add_special_tokens)
        return Response(msgspec.json.encode(spans), media_type="application/json")

    return routes
