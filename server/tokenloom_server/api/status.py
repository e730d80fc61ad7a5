"""The routes that say how the server is: health, info and metrics."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from tokenloom_router.metrics import Metrics
from tokenloom_router.router import Router
from tokenloom_server.api.info import InfoBody, info_body
from tokenloom_server.errors import ErrorBody, unhealthy
from tokenloom_server.settings import Settings


def status_routes(router: Router, settings: Settings, metrics: Metrics) -> APIRouter:
    """GET /health and its kin, /info and /metrics. None of them needs the API key.

    `settings.health_route` comes last: routes that are there already keep their paths.
    """
    routes = APIRouter(tags=["Status"])

    @routes.head("/", include_in_schema=False)
    @routes.head("/health", include_in_schema=False)
    @routes.head("/ping", include_in_schema=False)
    @routes.head("/readyz", include_in_schema=False)
    @routes.get("/", include_in_schema=False)
    @routes.get("/ping", response_class=Response, responses={503: {"model": ErrorBody}})
    @routes.get("/readyz", response_class=Response, responses={503: {"model": ErrorBody}})
    @routes.get("/health", response_class=Response, responses={503: {"model": ErrorBody}})
    async def health() -> Response:
        """200 with an empty body if a request would be taken, else 503.

        It is not while the engine starts again, and once the server was told to stop.
        """
        return Response() if router.is_ready else unhealthy()

    @routes.head("/livez", include_in_schema=False)
    @routes.get("/livez", response_class=Response)
    async def alive() -> Response:
        """200 with an empty body for as long as this process answers.

        It starts an engine that died or makes no progress again by itself; to start the whole
        server again would not help.
        """
        return Response()

    @routes.head("/info", include_in_schema=False)
    @routes.get("/info")
    async def info() -> InfoBody:
        """What is served, and within which limits."""
        return info_body(router, settings)

    @routes.head("/metrics", include_in_schema=False)
    @routes.get("/metrics", responses={200: {"content": {"text/plain": {}}}})
    async def prometheus_metrics() -> Response:
        """The metrics, in Prometheus' text format."""
        return Response(metrics.render(), headers={"content-type": metrics.content_type})

    if settings.health_route:
        routes.add_api_route(
            settings.health_route,
            health,
            methods=["GET", "HEAD"],
            response_class=Response,
            include_in_schema=False,
        )
    return routes
