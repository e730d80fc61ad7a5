"""The generate routes: TGI's own dialect."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Body
from starlette.responses import Response

from tokenloom_router.router import Router
from tokenloom_server.api.examples import COMPAT_EXAMPLES, GENERATE_EXAMPLES, STREAM_EXAMPLES
from tokenloom_server.api.generate_request import CompatGenerateBody, GenerateBody
from tokenloom_server.api.generate_response import GenerateResponseBody
from tokenloom_server.api.generation import Presentation, StreamedResponse, WholeResponse
from tokenloom_server.api.headers import compute_type
from tokenloom_server.api.stream_events import StreamEventBody
from tokenloom_server.body_route import StrictJsonRoute
from tokenloom_server.errors import ErrorBody
from tokenloom_server.settings import Settings
from tokenloom_server.unknown_fields import UnknownFields

ERRORS: dict[int | str, dict[str, Any]] = {
    422: {"model": ErrorBody, "description": "The request breaks a rule"},
    424: {"model": ErrorBody, "description": "The engine failed while it generated"},
    429: {"model": ErrorBody, "description": "No permit is free: try again later"},
    503: {"model": ErrorBody, "description": "The engine is starting, or the server stopping"},
}


class Responses:
    """Makes a route's response from its body."""

    def __init__(self, router: Router, settings: Settings, unknown: UnknownFields) -> None:
        self._router = router
        self._settings = settings
        self._unknown = unknown

    def whole(
        self, body: GenerateBody, *, full_text: bool = False, as_list: bool = False
    ) -> Response:
        """Generate, then answer. `full_text` holds where the body does not say."""
        headers = self._unknown.headers(body)
        return WholeResponse(
            self._router,
            body.to_request(stream=False),
            _presentation(body, headers, full_text=full_text, as_list=as_list),
            compute_type(self._router, self._settings),
        )

    def streamed(self, body: GenerateBody, *, full_text: bool = False) -> Response:
        """Answer with the tokens as they come."""
        headers = self._unknown.headers(body)
        return StreamedResponse(
            self._router,
            body.to_request(stream=True),
            _presentation(body, headers, full_text=full_text),
            compute_type(self._router, self._settings),
        )


def generate_routes(router: Router, settings: Settings, unknown: UnknownFields) -> APIRouter:
    """POST /generate, /generate_stream and /."""
    routes = APIRouter(route_class=StrictJsonRoute, tags=["Generate"], responses=ERRORS)
    responses = Responses(router, settings, unknown)

    @routes.post("/generate", **_answers(WholeResponse, GenerateResponseBody))
    async def generate(
        body: Annotated[GenerateBody, Body(openapi_examples=GENERATE_EXAMPLES)],
    ) -> Response:
        """Generate the text that follows a prompt."""
        return responses.whole(body)

    @routes.post("/generate_stream", **_answers(StreamedResponse, StreamEventBody))
    async def generate_stream(
        body: Annotated[GenerateBody, Body(openapi_examples=STREAM_EXAMPLES)],
    ) -> Response:
        """Generate, and send each token as a server-sent event."""
        return responses.streamed(body)

    @routes.post("/", **_answers(WholeResponse, list[GenerateResponseBody]))
    async def compat_generate(
        body: Annotated[CompatGenerateBody, Body(openapi_examples=COMPAT_EXAMPLES)],
    ) -> Response:
        """Generate, as `stream` says: like /generate_stream, or like /generate in a list."""
        if body.stream:
            return responses.streamed(body, full_text=True)
        return responses.whole(body, full_text=True, as_list=True)

    return routes


def _presentation(
    body: GenerateBody, headers: dict[str, str], *, full_text: bool, as_list: bool = False
) -> Presentation:
    given = body.parameters
    if given.return_full_text is not None:
        full_text = given.return_full_text
    return Presentation(
        prefix=body.inputs if full_text else "",
        with_details=given.wants_details,
        as_list=as_list,
        headers=headers,
    )


def _answers(response_class: type[Response], model: object) -> dict[str, Any]:
    """What the documentation says of a route's answer."""
    return {
        "response_class": response_class,
        "status_code": 200,
        "responses": {200: {"model": model}},
    }
