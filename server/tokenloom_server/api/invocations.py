"""The route of SageMaker, which takes the bodies of three others."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from tokenloom_server.api.examples import INVOCATION_EXAMPLES
from tokenloom_server.api.generate import ERRORS
from tokenloom_server.body_reader import BodyReader
from tokenloom_server.json_body import NO_VARIANT, NOT_JSON, BodyError, check_coding, is_json
from tokenloom_server.strict_json import parse_object

ROUTES = {"inputs": "/", "messages": "/v1/chat/completions", "prompt": "/v1/completions"}
"""By the field that tells their bodies apart, the first one that is there."""
BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "anyOf": [{"required": [field]} for field in ROUTES],
                    "description": "; ".join(
                        f"with `{field}` the body of {route}" for field, route in ROUTES.items()
                    ),
                },
                "examples": INVOCATION_EXAMPLES,
            }
        },
    }
}


class OtherRoute(Response):
    """Lets another route of the same application answer a request whose body is read."""

    def __init__(self, path: str, body: bytes) -> None:
        super().__init__()
        self._path = path
        self._request_body = body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        there = {**scope, "path": self._path, "raw_path": self._path.encode(), "root_path": ""}
        await scope["app"].router(there, self._again(receive), send)

    def _again(self, receive: Receive) -> Receive:
        messages: list[Message] = [{"type": "http.request", "body": self._request_body}]

        async def again() -> Message:
            return messages.pop() if messages else await receive()

        return again


def invocation_routes() -> APIRouter:
    """POST /invocations."""
    routes = APIRouter(tags=["Generate"], responses=ERRORS)
    reader = BodyReader(parse_object)

    @routes.post("/invocations", response_class=OtherRoute, status_code=200, openapi_extra=BODY)
    async def invocations(request: Request) -> Response:
        """Do as the route whose body this is: `/`, /v1/chat/completions or /v1/completions."""
        if not is_json(request):
            raise BodyError(415, NOT_JSON)
        check_coding(request)
        body = await request.body()
        fields = await reader.read(body)
        for field, path in ROUTES.items():
            if field in fields:
                return OtherRoute(path, body)
        raise BodyError(422, NO_VARIANT)

    return routes
