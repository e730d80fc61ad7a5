"""Choice of a replica: by prefix affinity, then by load."""

from __future__ import annotations

import random

from ray.serve.request_router import PendingRequest, RequestRouter, RunningReplica

from tokenloom_ray.forwarded_request import ForwardedRequest
from tokenloom_ray.prefix_map import PrefixMap

MAX_IMBALANCE = 8


class PrefixRouter(RequestRouter):
    """Prefers the replica that has the longest prefix of the prompt in its cache.

    A replica with `max_imbalance` requests more than the least loaded one loses the preference.
    Replicas that failed to respond to the request come last.
    """

    def initialize_state(self, max_imbalance: int = MAX_IMBALANCE) -> None:
        """Take `request_router_kwargs`."""
        self._max_imbalance = max_imbalance
        self._prefixes = PrefixMap()

    async def choose_replicas(
        self,
        candidate_replicas: list[RunningReplica],
        pending_request: PendingRequest | None = None,
    ) -> list[list[RunningReplica]]:
        """Return the replicas in order of preference, each a rank of its own."""
        if pending_request is None:
            return [candidate_replicas]
        pending_request.routing_context.should_backoff = True
        request: ForwardedRequest = pending_request.args[0]
        ranked = self._rank(candidate_replicas, request)
        self._prefixes.add(request.prefixes, ranked[0].replica_id.unique_id)
        return [[replica] for replica in ranked]

    def _rank(
        self, replicas: list[RunningReplica], request: ForwardedRequest
    ) -> list[RunningReplica]:
        queue_lengths = self.replica_queue_len_cache
        loads = {
            replica.replica_id.unique_id: queue_lengths.get(replica.replica_id) or 0
            for replica in replicas
        }
        available = loads.keys() - request.tried
        preferred = self._prefixes.find(request.prefixes, available)
        if preferred is not None:
            least = min(loads[id] for id in available)
            if loads[preferred] - least >= self._max_imbalance:
                preferred = None

        def rank(replica: RunningReplica) -> tuple[bool, bool, int, float]:
            id = replica.replica_id.unique_id
            return id in request.tried, id != preferred, loads[id], random.random()

        return sorted(replicas, key=rank)
