"""The autoscaling policy."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tokenloom_ray.autoscaling import WaitingSequencesPolicy


def desired(num_replicas: int, **metrics: dict[str, float]) -> float:
    context: Any = SimpleNamespace(
        aggregated_metrics=metrics, current_num_replicas=num_replicas, target_num_replicas=5
    )
    return WaitingSequencesPolicy(waiting_sequences=8, kv_cache_usage=0.8)(context)[0]


@pytest.mark.parametrize(
    ("waiting", "usage", "expected"),
    [
        ([8, 8], [0.1, 0.1], 2),
        ([24, 8], [0.1, 0.1], 4),
        ([0, 0], [0.4, 0.4], 1),
        ([0, 0], [1.0, 0.8], 2.25),
        ([0, 0], [0, 0], 0),
    ],
)
def test_the_metric_that_asks_for_more_decides(
    waiting: list[float], usage: list[float], expected: float
) -> None:
    names = ["r1", "r2"]
    number = desired(
        2,
        waiting_sequences=dict(zip(names, waiting, strict=True)),
        kv_cache_usage=dict(zip(names, usage, strict=True)),
    )
    assert number == pytest.approx(expected)


def test_without_metrics_the_target_stays() -> None:
    assert desired(2) == 5
    assert desired(2, waiting_sequences={}) == 5
