"""The application that `serve run` and `serve deploy` build."""

from __future__ import annotations

from typing import Any

from ray import serve
from ray.serve.config import RequestRouterConfig

from tokenloom_ray.ingress import Ingress
from tokenloom_ray.prefix_router import PrefixRouter
from tokenloom_ray.replica import EngineReplica
from tokenloom_ray.replica_settings import replica_settings

MAX_ONGOING_REQUESTS = 10_000
"""Beyond --max-concurrent-requests, at which a replica answers 429 itself."""


def build(args: dict[str, Any]) -> serve.Application:
    """Return the ingress and the replicas behind it.

    `args` are flags of `tokenloom serve`, as `model_id`. Raises ValueError for those that a replica
    cannot take.
    """
    settings = replica_settings(args, num_cpus=0)
    engine = serve.deployment(
        name="Engine",
        max_ongoing_requests=MAX_ONGOING_REQUESTS,
        request_router_config=RequestRouterConfig(request_router_class=PrefixRouter),
    )(EngineReplica)
    ingress = serve.deployment(name="Ingress", max_ongoing_requests=MAX_ONGOING_REQUESTS)(Ingress)
    return ingress.bind(engine.bind(args), settings.payload_limit)
