"""Routes whose errors are OpenAI's."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi.exceptions import RequestValidationError
from starlette.requests import Request
from starlette.responses import Response

from tokenloom_router.errors import RequestError
from tokenloom_server.api.openai.errors import Fault, Words
from tokenloom_server.body_route import StrictJsonRoute
from tokenloom_server.json_body import BodyError
from tokenloom_server.middleware.payload_limit import PayloadTooLarge


class OpenAIRoute(StrictJsonRoute):
    """Reads its body strictly, and says in OpenAI's words what is wrong with it."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Wrap what FastAPI does with a request before its response is made."""
        handle = super().get_route_handler()

        async def handle_faults(request: Request) -> Response:
            try:
                return await handle(request)
            except RequestError as error:
                return Fault.of(error, Words()).response()
            except (RequestValidationError, BodyError, PayloadTooLarge) as error:
                return Fault.of_body(request, error).response()

        return handle_faults
