"""All metrics of the router, in one registry."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from tokenloom_router.engine_metrics import EngineMetrics
from tokenloom_router.exposition import CONTENT_TYPE, render
from tokenloom_router.request_metrics import RequestMetrics


class Metrics:
    """Owns the registry. Every metric is there from the start, with the value 0."""

    content_type = CONTENT_TYPE
    """Of what `render` returns."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = RequestMetrics(self.registry)
        self.engine = EngineMetrics(self.registry)

    def render(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return render(self.registry)
