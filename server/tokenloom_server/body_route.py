"""Routes whose bodies are read strictly."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope

from tokenloom_server.body_model import BodyModel, InvalidBody
from tokenloom_server.body_reader import BodyReader
from tokenloom_server.json_body import check_coding


class ReadRequest(Request):
    """A request whose JSON is what its route's reader makes of it."""

    def __init__(self, scope: Scope, receive: Receive, reader: BodyReader[object]) -> None:
        super().__init__(scope, receive)
        self._reader = reader

    async def json(self) -> object:
        """The body's model, which FastAPI's own validation takes as it is."""
        return await self._reader.read(await self.body())


class StrictJsonRoute(APIRoute):
    """A route that reads its body as strict JSON, and as its model."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Wrap the request before FastAPI reads it."""
        handle = super().get_route_handler()
        if self.body_field is None:
            return handle
        reader = BodyReader(BodyModel(self.body_field.field_info.annotation).parse)

        async def handle_strictly(request: Request) -> Response:
            check_coding(request)
            try:
                return await handle(ReadRequest(request.scope, request.receive, reader))
            except InvalidBody as invalid:
                raise invalid.error from None

        return handle_strictly
