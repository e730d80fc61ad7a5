"""A histogram that counts many equal observations at once."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate

from prometheus_client.metrics_core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector, CollectorRegistry

from tokenloom_router.exposition import number_text

SECONDS_BUCKETS = tuple(0.0001 * 1.5**power for power in range(1, 36))
"""TGI's buckets for durations: 0.15 ms to 145 s."""
COUNT_BUCKETS = tuple(
    sorted({base << shift for base in (4, 5, 6, 7) for shift in range(16)} | {1, 2, 3})
)
"""For numbers of tokens and sequences: four buckets an octave, up to 229,376."""


def linear_buckets(largest: int) -> list[float]:
    """TGI's buckets for lengths: a hundred, up to the largest there can be."""
    return [largest / 100 * number for number in range(1, 101)]


class WeightedHistogram(Collector):
    """For what is measured once a step for all its sequences. Not for use in many threads."""

    def __init__(
        self, name: str, help_text: str, buckets: Sequence[float], registry: CollectorRegistry
    ) -> None:
        self._name = name
        self._help_text = help_text
        self.set_buckets(buckets)
        registry.register(self)

    def set_buckets(self, buckets: Sequence[float]) -> None:
        """Begin anew, with these upper bounds."""
        self._bounds = [*buckets, float("inf")]
        self._counts = [0] * len(self._bounds)
        self._sum = 0.0

    def observe(self, value: float, count: int = 1) -> None:
        """Count `value`, `count` times."""
        self._counts[bisect_left(self._bounds, value)] += count
        self._sum += value * count

    def collect(self) -> Iterator[Metric]:
        """Give the registry the counts so far."""
        bounds = map(number_text, self._bounds)
        yield HistogramMetricFamily(
            self._name,
            self._help_text,
            buckets=list(zip(bounds, accumulate(self._counts), strict=True)),
            sum_value=self._sum,
        )
