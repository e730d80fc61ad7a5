"""Number of replicas for the sequences that wait and the KV cache in use."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ray.serve.config import AutoscalingContext


class WaitingSequencesPolicy:
    """Scales as a HorizontalPodAutoscaler with two metrics does.

    `waiting_sequences` and `kv_cache_usage` are targets for the means over the replicas. The metric
    that asks for more replicas decides. Serve applies its limits and delays to the result.
    """

    def __init__(self, waiting_sequences: float = 8.0, kv_cache_usage: float = 0.8) -> None:
        self._targets = {
            "waiting_sequences": waiting_sequences,
            "kv_cache_usage": kv_cache_usage,
        }

    def __call__(self, context: AutoscalingContext) -> tuple[float, dict[str, Any]]:
        """Return the number of replicas to have, and no state."""
        metrics = context.aggregated_metrics or {}
        ratios = [
            _mean(metrics[name].values()) / target
            for name, target in self._targets.items()
            if metrics.get(name)
        ]
        if not ratios:
            return context.target_num_replicas, {}
        return context.current_num_replicas * max(ratios), {}


def _mean(values: Collection[float]) -> float:
    return sum(values) / len(values)
