"""Readings of our server's /metrics."""

from __future__ import annotations

import urllib.request
from collections import defaultdict

Reading = dict[str, float]


def read_metrics(url: str) -> Reading:
    """The value of each metric, summed over its labels."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=10) as response:
        lines = response.read().decode().splitlines()
    metrics: Reading = defaultdict(float)
    for line in lines:
        if not line.startswith("#"):
            name, _, value = line.rpartition(" ")
            metrics[name.partition("{")[0]] += float(value)
    return metrics


def spent(before: Reading, after: Reading) -> Reading:
    """How much each metric grew."""
    return {name: value - before.get(name, 0.0) for name, value in after.items()}
