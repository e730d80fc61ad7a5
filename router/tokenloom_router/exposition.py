"""Prometheus text with the metrics' names as they are: TGI's counters have no `_total` suffix."""

from __future__ import annotations

import math
from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric
from prometheus_client.samples import Sample

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def render(registry: CollectorRegistry) -> bytes:
    """Return all metrics of the registry in Prometheus' text format, version 0.0.4."""
    lines = (line for metric in registry.collect() for line in _metric_lines(metric))
    return "".join(lines).encode()


def number_text(value: float) -> str:
    """Return a number as the format writes it."""
    return "+Inf" if value == math.inf else repr(float(value))


def _metric_lines(metric: Metric) -> Iterator[str]:
    help_text = metric.documentation.replace("\\", r"\\").replace("\n", r"\n")
    yield f"# HELP {metric.name} {help_text}\n"
    yield f"# TYPE {metric.name} {metric.type}\n"
    for sample in metric.samples:
        if not sample.name.endswith("_created"):
            yield _sample_line(metric, sample)


def _sample_line(metric: Metric, sample: Sample) -> str:
    name = metric.name if metric.type == "counter" else sample.name
    labels = ",".join(f'{key}="{_escape(value)}"' for key, value in sample.labels.items())
    braces = f"{{{labels}}}" if labels else ""
    return f"{name}{braces} {number_text(sample.value)}\n"


def _escape(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
