"""Metrics of the HTTP layer."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter


class HttpMetrics:
    """Responses by route and status, and the unknown fields of request bodies."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.responses = Counter(
            "tgi_http_responses",
            "HTTP responses, those to requests that were refused before the router included.",
            ["method", "route", "status"],
            registry=registry,
        )
        self.ignored_fields = Counter(
            "tgi_request_ignored_fields",
            "Unknown fields of request bodies that were ignored.",
            registry=registry,
        )
