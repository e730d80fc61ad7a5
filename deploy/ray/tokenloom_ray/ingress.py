"""The ingress: forwards each request to a replica, and another one if that fails early."""

from __future__ import annotations

from dataclasses import replace

from ray import serve
from ray.exceptions import RayError
from ray.serve.handle import DeploymentHandle
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tokenloom_ray.forwarded_request import ForwardedRequest
from tokenloom_ray.joint_metrics import join_metrics
from tokenloom_ray.relayed_response import RelayedResponse
from tokenloom_router.exposition import CONTENT_TYPE
from tokenloom_server.errors import EXCEPTION_HANDLERS
from tokenloom_server.middleware.openai_errors import OpenAIErrors
from tokenloom_server.middleware.payload_limit import PayloadLimit

MAX_ATTEMPTS = 3


@serve.ingress()
class Ingress:
    """Speaks the dialects of the replicas without knowing them."""

    def __init__(self, engine: DeploymentHandle, payload_limit: int) -> None:
        self._engine = engine
        self._payload_limit = payload_limit

    def __serve_build_asgi_app__(self) -> ASGIApp:
        return Starlette(
            routes=[
                Route("/metrics", self._metrics),
                Route("/{path:path}", Forwarder(self._engine)),
            ],
            exception_handlers=EXCEPTION_HANDLERS,
            middleware=[
                Middleware(OpenAIErrors),
                Middleware(PayloadLimit, limit=self._payload_limit),
            ],
        )

    async def _metrics(self, _request: Request) -> Response:
        """The metrics of all replicas, each with the label `replica`."""
        results = await self._engine.broadcast("render_metrics").results_async(
            return_exceptions=True
        )
        expositions = {
            result[0]: result[1].decode() for result in results if isinstance(result, tuple)
        }
        return Response(join_metrics(expositions), headers={"content-type": CONTENT_TYPE})


class Forwarder:
    """An ASGI application that relays the response of a replica."""

    def __init__(self, engine: DeploymentHandle) -> None:
        self._engine = engine.options(method_name="respond", stream=True)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Try replicas until one begins a response."""
        request = ForwardedRequest.create(scope, await Request(scope, receive).body())
        for attempts_left in reversed(range(MAX_ATTEMPTS)):
            response = RelayedResponse(request.scope["path"], send, is_last=attempts_left == 0)
            await self._relay(request, response)
            if not response.is_refused:
                break
            if response.replica is not None:
                request = replace(request, tried=request.tried | {response.replica})

    async def _relay(self, request: ForwardedRequest, response: RelayedResponse) -> None:
        messages: list[Message]
        stream = self._engine.remote(request)
        try:
            async for messages in stream:
                for message in messages:
                    await response.relay(message)
        except RayError as error:
            await response.break_off(error)
        finally:
            stream.cancel()
