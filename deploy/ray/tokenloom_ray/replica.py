"""A replica: the whole server without its port, and an engine with its own device."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from typing import Any

import ray
from fastapi import FastAPI
from ray import serve
from starlette.datastructures import MutableHeaders
from starlette.types import Message

from tokenloom_engine.logs import configure_logging
from tokenloom_ray.application_call import call_application
from tokenloom_ray.forwarded_request import REPLICA_ID, ForwardedRequest
from tokenloom_ray.replica_settings import replica_settings
from tokenloom_router.metrics import Metrics
from tokenloom_router.router import Router
from tokenloom_server.app import create_app
from tokenloom_server.configs import engine_config, router_config
from tokenloom_server.environment import prepare_hub
from tokenloom_server.settings import Settings
from tokenloom_server.tgi_flags import remarks

logger = logging.getLogger(__name__)

AUTOSCALING_METRICS = {
    "waiting_sequences": "tgi_queue_size",
    "kv_cache_usage": "tgi_kv_cache_usage",
}
"""Metrics of the autoscaling policy, and the gauges that they are."""


class EngineReplica:
    """Answers the requests that the ingress forwards."""

    async def __init__(  # type: ignore[misc]  # pyright: ignore[reportGeneralTypeIssues]
        self, flags: Mapping[str, Any]
    ) -> None:
        """Load the model; Serve awaits it. Raise EngineStartError if it cannot be loaded."""
        settings = replica_settings(flags, self._num_cpus())
        configure_logging(json_output=settings.json_output, level=settings.log_level)
        for remark in remarks(settings.given):
            logger.warning("%s", remark)
        prepare_hub(settings.huggingface_hub_cache)
        self._id = serve.get_replica_context().replica_id.unique_id
        self._metrics = Metrics()
        self._app = self._create_app(settings)
        is_loaded = asyncio.Event()
        self._serving = asyncio.create_task(self._serve(is_loaded))
        loaded = asyncio.create_task(is_loaded.wait())
        await asyncio.wait({self._serving, loaded}, return_when=asyncio.FIRST_COMPLETED)
        if self._serving.done():
            loaded.cancel()
            await self._serving

    async def respond(self, request: ForwardedRequest) -> AsyncIterator[list[Message]]:
        """Yield the ASGI messages of the response."""
        async for messages in call_application(self._app, request):
            if messages[0]["type"] == "http.response.start":
                MutableHeaders(scope=messages[0]).append(REPLICA_ID, self._id)
            yield messages

    def render_metrics(self) -> tuple[str, bytes]:
        """Return the replica's id and its metrics in Prometheus' text format."""
        return self._id, self._metrics.render()

    def record_autoscaling_stats(self) -> dict[str, float]:
        """Return the metrics that the autoscaling policy reads."""
        registry = self._metrics.registry
        return {
            name: registry.get_sample_value(gauge) or 0.0
            for name, gauge in AUTOSCALING_METRICS.items()
        }

    def check_health(self) -> None:
        """Raise if the router has ended. It restarts a broken engine itself."""
        if self._serving.done():
            raise RuntimeError("the router has ended")

    @staticmethod
    def _num_cpus() -> int:
        return int(ray.get_runtime_context().get_assigned_resources().get("CPU", 0))

    def _create_app(self, settings: Settings) -> FastAPI:
        router = Router(router_config(settings), engine_config(settings), self._metrics)
        return create_app(settings, router, self._metrics)

    async def _serve(self, is_loaded: asyncio.Event) -> None:
        """Run the router until the process ends. The engine process ends with this one."""
        async with self._app.router.lifespan_context(self._app):
            is_loaded.set()
            await asyncio.Event().wait()
