"""All replicas: started together, and the choice of one for each request.

A request goes to the replica with the least cost: the tokens that wait there, plus the tokens of
the prompt that its prefix cache lacks. So prompts with a common prefix meet in one prefix cache as
long as their replica has not more tokens waiting than the cache saves. NVIDIA Dynamo's KV router
has the same form of cost; consistent hashing with bounded loads (Mirrokni et al., 2018) bounds
affinity by load as well.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import NamedTuple

import anyio
import msgspec
from anyio.abc import TaskGroup

from tokenloom_engine.config import EngineConfig
from tokenloom_engine.messages import ModelInfo
from tokenloom_router.engine_client import EngineClient
from tokenloom_router.engine_metrics import EngineMetrics
from tokenloom_router.errors import EngineStartError, UnavailableError
from tokenloom_router.replica import Replica

MAX_HASHED_BLOCKS = 256
"""Blocks of a prompt that are compared, which bounds the time for a long one to 0.1 ms."""
ID = "q"
"""Type code of a token id."""


class Route(NamedTuple):
    """The engine for a request."""

    client: EngineClient
    prefill_tokens: int
    """Tokens of the prompt that the engine is expected to compute."""


class Replicas:
    """`config.replicas` engines with equal settings."""

    def __init__(
        self,
        config: EngineConfig,
        metrics: EngineMetrics,
        stall_seconds: float,
        command: Sequence[str],
    ) -> None:
        """Take the arguments of EngineSupervisor."""
        self._prefix_caching = config.prefix_caching
        self._replicas = [
            Replica(
                msgspec.structs.replace(config, replica_index=index),
                metrics,
                stall_seconds,
                command,
            )
            for index in range(config.replicas)
        ]

    async def start(self, tasks: TaskGroup) -> ModelInfo:
        """Start all engines in `tasks`, and return the model of the one with the least KV cache.

        The first is started alone: it fills the cache folder, from which the others load. Raise
        EngineStartError if one cannot start.
        """
        first, *others = self._replicas
        models = [await self._start_one(tasks, first)]
        problem: EngineStartError | None = None

        async def start_other(replica: Replica) -> None:
            nonlocal problem
            try:
                models.append(await self._start_one(tasks, replica))
            except EngineStartError as error:
                problem = problem or error
                starting.cancel_scope.cancel()

        async with anyio.create_task_group() as starting:
            for replica in others:
                starting.start_soon(start_other, replica)
        if problem is not None:
            raise problem
        return min(models, key=lambda model: model.max_batch_total_tokens)

    @property
    def count(self) -> int:
        """Number of replicas, ready or not."""
        return len(self._replicas)

    @property
    def num_ready(self) -> int:
        """Number of engines that take requests."""
        return sum(replica.client.is_ready for replica in self._replicas)

    @property
    def num_received(self) -> int:
        """Messages from all engines so far."""
        return sum(replica.client.num_received for replica in self._replicas)

    @property
    def pids(self) -> list[int | None]:
        """Process id of each engine, None while there is none."""
        return [replica.pid for replica in self._replicas]

    def choose(self, prompt_ids: Sequence[int]) -> Route:
        """Choose the engine for a prompt, which is then sent to it.

        Engines that are not ready get no requests, and silent ones only if all ready ones are
        silent. Raise UnavailableError if no engine is ready.
        """
        if len(self._replicas) == 1:
            return Route(self._replicas[0].client, len(prompt_ids))
        ready = [replica for replica in self._replicas if replica.client.is_ready]
        candidates = [replica for replica in ready if replica.is_responsive] or ready
        if not candidates:
            raise UnavailableError("The engine is not ready")
        model = candidates[0].client.model
        assert model is not None, "a ready engine has told its model"
        hashes = block_hashes(prompt_ids, model.block_size) if self._prefix_caching else []

        def cost(replica: Replica) -> tuple[int, int]:
            cached_tokens = replica.num_cached(hashes) * model.block_size
            # Where costs are equal, the prefix caches fill evenly.
            return replica.client.waiting_tokens - cached_tokens, replica.num_blocks

        replica = min(candidates, key=cost)
        prefill_tokens = len(prompt_ids) - replica.num_cached(hashes) * model.block_size
        replica.add_blocks(hashes)
        return Route(replica.client, prefill_tokens)

    async def _start_one(self, tasks: TaskGroup, replica: Replica) -> ModelInfo:
        try:
            model: ModelInfo = await tasks.start(replica.run)
        except EngineStartError as error:
            if len(self._replicas) == 1:
                raise
            index = self._replicas.index(replica)
            raise EngineStartError(f"replica {index} cannot start: {error}") from error
        return model


def block_hashes(prompt_ids: Sequence[int], block_size: int) -> list[int]:
    """Hash the first full blocks of a prompt, each with all tokens before it."""
    ids = array(ID, prompt_ids[: MAX_HASHED_BLOCKS * block_size])
    data, step = ids.tobytes(), block_size * ids.itemsize
    hashes: list[int] = []
    parent = 0
    for end in range(step, len(data) + 1, step):
        parent = hash((parent, data[end - step : end]))
        hashes.append(parent)
    return hashes
