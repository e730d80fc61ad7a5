"""The order in which replicas are tried for a request."""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping


def rank_replicas(
    loads: Mapping[str, int], *, preferred: str | None, tried: Collection[str], max_imbalance: int
) -> list[str]:
    """Return all replicas, the best one first.

    `loads` are the requests of each. The `preferred` one comes first unless it has `max_imbalance`
    requests more than another. Those that were `tried` come last; others by load, ties by chance.
    """
    available = [load for replica, load in loads.items() if replica not in tried]
    if preferred is not None and available:
        is_overloaded = loads[preferred] - min(available) >= max_imbalance
        preferred = None if is_overloaded else preferred
    return sorted(
        loads,
        key=lambda replica: (
            replica in tried,
            replica != preferred,
            loads[replica],
            random.random(),
        ),
    )
