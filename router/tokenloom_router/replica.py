"""A replica: one of several engines, its supervisor, and the prompt prefixes sent to it."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Sequence

from anyio.abc import TaskStatus

from tokenloom_engine.config import EngineConfig
from tokenloom_engine.messages import ModelInfo
from tokenloom_router.engine_client import EngineClient
from tokenloom_router.engine_metrics import EngineMetrics
from tokenloom_router.supervisor import EngineSupervisor

MAX_SILENCE_SECONDS = 2.0
"""A ready engine that was silent for longer is in a long step, or stalled. Heartbeats come twice a
second."""


class Replica:
    """An engine process with its own device or its own share of the cores.

    It keeps the hashes of the prompt blocks that were sent to the engine, an estimate of what the
    engine's prefix cache holds.
    """

    def __init__(
        self,
        config: EngineConfig,
        metrics: EngineMetrics,
        stall_seconds: float,
        command: Sequence[str],
    ) -> None:
        """Take the arguments of EngineSupervisor."""
        self.client = EngineClient(metrics)
        self._supervisor = EngineSupervisor(config, self.client, metrics, stall_seconds, command)
        self._blocks: OrderedDict[int, None] = OrderedDict()
        """Hashes of blocks, least recently sent first."""

    async def run(self, *, task_status: TaskStatus[ModelInfo]) -> None:
        """Keep the engine running until cancelled. Started when the first process is ready.

        Raise EngineStartError if that one never is.
        """
        await self._supervisor.run(self._blocks.clear, task_status=task_status)

    @property
    def pid(self) -> int | None:
        """Process id of the engine, while there is one."""
        return self._supervisor.pid

    @property
    def is_responsive(self) -> bool:
        """Return whether the engine takes requests and sent a message lately."""
        silence = time.monotonic() - self.client.received_at
        return self.client.is_ready and silence <= MAX_SILENCE_SECONDS

    @property
    def num_blocks(self) -> int:
        """Number of blocks that the engine's prefix cache is expected to hold."""
        return len(self._blocks)

    def num_cached(self, hashes: Sequence[int]) -> int:
        """Return how many of the first blocks of a prompt the engine is expected to have cached."""
        for index, block_hash in enumerate(hashes):
            if block_hash not in self._blocks:
                return index
        return len(hashes)

    def add_blocks(self, hashes: Sequence[int]) -> None:
        """Note that a prompt is sent to the engine. Only after it was ready once."""
        model = self.client.model
        assert model is not None, "an engine that is chosen has been ready"
        for block_hash in reversed(hashes):  # a prefix outlives what follows it
            self._blocks[block_hash] = None
            self._blocks.move_to_end(block_hash)
        capacity = model.max_batch_total_tokens // model.block_size
        while len(self._blocks) > capacity:
            self._blocks.popitem(last=False)
