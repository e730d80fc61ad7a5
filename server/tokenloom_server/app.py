"""The HTTP application: routes, error answers and middleware around one router."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from importlib.metadata import version

from fastapi import FastAPI, Security
from fastapi.security import HTTPBearer
from fastapi_offline import FastAPIOffline
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import Match

from tokenloom_router.metrics import Metrics
from tokenloom_router.router import Router
from tokenloom_server.access_log import AccessLog
from tokenloom_server.api.generate import generate_routes
from tokenloom_server.api.invocations import invocation_routes
from tokenloom_server.api.openai.routes import openai_routes
from tokenloom_server.api.status import status_routes
from tokenloom_server.api.tokenize import tokenize_routes
from tokenloom_server.api.vertex import vertex_routes
from tokenloom_server.errors import EXCEPTION_HANDLERS
from tokenloom_server.http_metrics import HttpMetrics
from tokenloom_server.middleware.access_line import AccessLine
from tokenloom_server.middleware.api_key import ApiKey
from tokenloom_server.middleware.openai_errors import OpenAIErrors
from tokenloom_server.middleware.payload_limit import PayloadLimit
from tokenloom_server.middleware.request_id import RequestId
from tokenloom_server.middleware.response_count import ResponseCount
from tokenloom_server.settings import Settings
from tokenloom_server.unknown_fields import HEADER as IGNORED_FIELDS
from tokenloom_server.unknown_fields import UnknownFields

DESCRIPTION = (
    "Serves a language model in the dialect of text-generation-inference, with a constraint "
    "engine for each request."
)


def create_app(settings: Settings, router: Router, metrics: Metrics) -> FastAPI:
    """The application. Its lifespan runs the router: it starts when the model is loaded."""

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        async with router.running():
            yield

    app = FastAPIOffline(
        title="tokenloom",
        version=version("tokenloom"),
        description=DESCRIPTION,
        lifespan=lifespan,
        openapi_url="/api-doc/openapi.json",
        docs_url="/docs",
        redoc_url=None,
        static_url="/docs/static",  # the page needs nothing from other hosts
        redirect_slashes=False,
        exception_handlers=EXCEPTION_HANDLERS,
    )
    # Only for the documentation page's "Authorize"; the middleware decides.
    key = [Security(HTTPBearer(auto_error=False))] if settings.api_key else []
    http_metrics = HttpMetrics(metrics.registry)
    unknown = UnknownFields(http_metrics, are_refused=settings.strict_fields)
    app.include_router(generate_routes(router, settings, unknown), dependencies=key)
    app.include_router(tokenize_routes(router, settings, unknown), dependencies=key)
    app.include_router(invocation_routes(), dependencies=key)
    app.include_router(openai_routes(router, settings), dependencies=key)
    own_paths = frozenset(_free_paths(app, settings))
    # Last: the paths that the settings add must not hide other routes.
    app.include_router(vertex_routes(router, settings, unknown), dependencies=key)
    app.include_router(status_routes(router, settings, metrics))
    _add_middleware(app, settings, http_metrics, own_paths)
    if settings.otlp_endpoint:
        _trace(app, settings.otlp_endpoint, settings.otlp_service_name, metrics)
    if settings.access_log:
        access_log = AccessLog()
        metrics.requests.observers.append(access_log)
        app.add_middleware(AccessLine, access_log=access_log)
    app.add_middleware(RequestId)
    return app


def _trace(app: FastAPI, endpoint: str, service_name: str, metrics: Metrics) -> None:
    # Imported late: without a collector, tracing costs nothing.
    from tokenloom_server.middleware.request_span import RequestSpan
    from tokenloom_server.tracing import Tracing

    tracing = Tracing(endpoint, service_name)
    metrics.requests.observers.append(tracing)
    app.add_middleware(RequestSpan, tracing=tracing)


def _free_paths(app: FastAPI, settings: Settings) -> Iterator[str]:
    """Yield the paths that the settings add and that no route has yet."""
    for method, path in (("POST", settings.predict_route), ("GET", settings.health_route)):
        scope = {"type": "http", "method": method, "path": path}
        if path and all(route.matches(scope)[0] is not Match.FULL for route in app.routes):
            yield path


def _add_middleware(
    app: FastAPI, settings: Settings, http_metrics: HttpMetrics, own_paths: frozenset[str]
) -> None:
    """Add the middleware; the last one added sees a request first.

    `own_paths`: those that the settings add, which may be in OpenAI's folder but have TGI's errors.
    """
    app.add_middleware(PayloadLimit, limit=settings.payload_limit)
    if settings.api_key:
        open_paths = own_paths & {settings.health_route}
        app.add_middleware(ApiKey, api_key=settings.api_key, open_paths=open_paths)
    app.add_middleware(OpenAIErrors, without=own_paths)
    app.add_middleware(
        CORSMiddleware,
        allow_origins=settings.cors_allow_origin or ["*"],
        allow_methods=["GET", "POST"],
        allow_headers=["*"],  # clients of OpenAI's dialect send some of their own
        expose_headers=["x-request-id", IGNORED_FIELDS],
    )
    app.add_middleware(ResponseCount, metrics=http_metrics)
