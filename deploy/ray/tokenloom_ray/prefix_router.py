"""Choice of a replica by prefix affinity, then by load."""

from __future__ import annotations

from ray.serve.request_router import PendingRequest, RequestRouter, RunningReplica

from tokenloom_ray.forwarded_request import ForwardedRequest
from tokenloom_ray.prefix_map import PrefixMap
from tokenloom_ray.replica_ranking import rank_replicas

MAX_IMBALANCE = 8


class PrefixRouter(RequestRouter):
    """Prefers the replica that the longest known prefix of the prompt was last sent to."""

    def initialize_state(self, max_imbalance: int = MAX_IMBALANCE) -> None:
        """Take `request_router_kwargs`; `rank_replicas` explains them."""
        self._max_imbalance = max_imbalance
        self._prefixes = PrefixMap()

    async def choose_replicas(
        self,
        candidate_replicas: list[RunningReplica],
        pending_request: PendingRequest | None = None,
    ) -> list[list[RunningReplica]]:
        """Return the replicas in order of preference, each a rank of its own."""
        if pending_request is None or not candidate_replicas:
            return [candidate_replicas]
        pending_request.routing_context.should_backoff = True
        request: ForwardedRequest = pending_request.args[0]
        replicas = {replica.replica_id.unique_id: replica for replica in candidate_replicas}
        ranked = rank_replicas(
            {id: self._load(replica) for id, replica in replicas.items()},
            preferred=self._prefixes.find(request.prefixes, replicas.keys() - request.tried),
            tried=request.tried,
            max_imbalance=self._max_imbalance,
        )
        self._prefixes.add(request.prefixes, ranked[0])
        return [[replicas[id]] for id in ranked]

    def _load(self, replica: RunningReplica) -> int:
        """Return the number of requests; 0 where none was sent or counted for some seconds."""
        return self.replica_queue_len_cache.get(replica.replica_id) or 0
