"""Decoding without the cost of launching: forwards recorded once, for some numbers of rows."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

import numpy as np
import torch

from tokenloom_engine.attention.varlen import VarlenAttention, VarlenStep
from tokenloom_engine.batch import Row, to_device
from tokenloom_engine.model import Model

logger = logging.getLogger(__name__)

DEFAULT_SIZES = (1, 2, 4, 8, 16, 32, 64, 128)
WARM_UP = 2
"""Forwards before one is recorded: some libraries prepare themselves in the first."""

Forward = Callable[[], torch.Tensor]
"""Reads its inputs at fixed places; returns logits [rows, vocab_size], at a fixed place too."""


class DecodeGraphs:
    """Forwards of batches in which each row computes one token and wants its logits.

    A batch takes the next larger recording. The rows that are missing are padding: one token at
    position 0, in the cache's scratch block.
    """

    def __init__(
        self,
        model: Model,
        backend: VarlenAttention,
        sizes: Iterable[int],
        longest: int,
        record: Callable[[list[Forward]], list[Forward]] | None = None,
    ) -> None:
        """Record a forward for each of `sizes`, of sequences of up to `longest` tokens.

        `record` is how; None is as CUDA graphs. Where it cannot be done, there are none, and the
        log says so.
        """
        self._backend = backend
        self._model = model
        self._width = -(-longest // backend.block_size)
        largest_first = sorted(set(sizes), reverse=True)
        self._inputs = {size: DecodeInputs(size, self._width, backend) for size in largest_first}
        forwards = [self._forward(inputs) for inputs in self._inputs.values()]
        try:
            recorded = (record or _record_on_cuda)(forwards)
        except RuntimeError as error:
            reason = str(error).strip().splitlines() or [type(error).__name__]
            logger.warning("No CUDA graphs, for the model's forward cannot be one: %s", reason[0])
            self._inputs, recorded = {}, []
        self._forwards = dict(zip(self._inputs, recorded, strict=True))

    @property
    def sizes(self) -> list[int]:
        """For how many rows there are recordings."""
        return sorted(self._forwards)

    def size_for(self, rows: list[Row]) -> int | None:
        """The recording that these rows can take, if there is one."""
        if not all(row.count == 1 and row.num_logits == 1 for row in rows):
            return None
        if max(row.end for row in rows) > self._width * self._backend.block_size:
            return None
        return min((size for size in self._forwards if size >= len(rows)), default=None)

    def logits(self, rows: list[Row], size: int) -> torch.Tensor:
        """Of each row, [rows, vocab_size]. Valid until the next call."""
        self._inputs[size].fill(rows)
        return self._forwards[size]()[: len(rows)]

    def _forward(self, inputs: DecodeInputs) -> Forward:
        def forward() -> torch.Tensor:
            self._backend.step = inputs.step
            is_long = None if self._model.rope_ranges is None else inputs.is_long.bool()
            return self._model.forward(
                inputs.ids, inputs.positions, inputs.logit_positions, is_long
            )

        return forward


class DecodeInputs:
    """Where a recorded forward of `size` rows finds what changes from step to step."""

    def __init__(self, size: int, width: int, backend: VarlenAttention) -> None:
        """`width`: the most blocks of a row."""
        device = backend.device
        self._block_size = backend.block_size
        self._scratch_block = backend.scratch_block
        self._numbers = torch.zeros(4, size, dtype=torch.int64, device=device)
        self._keys = torch.zeros(size * (1 + width), dtype=torch.int32, device=device)
        self.ids = self._numbers[0:1]
        self.positions = self._numbers[1:2]
        self.is_long = self._numbers[3:4]
        self.logit_positions = torch.arange(size, device=device)
        starts = torch.arange(size + 1, dtype=torch.int32, device=device)
        most_keys = width * backend.block_size
        self.step = VarlenStep(
            self._numbers[2],
            self._keys[size:].view(size, width),
            starts,
            # Where each row's keys began if all rows had all blocks. The lengths say what counts.
            starts * most_keys,
            self._keys[:size],
            1,
            most_keys,
        )
        self.fill([])

    def fill(self, rows: list[Row]) -> None:
        """Set them to those of `rows`, and to padding after these."""
        size, width = self.step.tables.shape
        numbers = np.zeros((4, size), dtype=np.int64)
        lengths = np.ones(size, dtype=np.int32)
        tables = np.zeros((size, width), dtype=np.int32)
        numbers[2] = self._scratch_block * self._block_size
        tables[:, 0] = self._scratch_block
        for i, row in enumerate(rows):
            position, table = row.start, row.sequence.block_table
            block, offset = divmod(position, self._block_size)
            numbers[:, i] = (
                row.sequence.ids[position],
                position,
                table[block] * self._block_size + offset,
                row.sequence.is_long,
            )
            lengths[i] = row.end
            tables[i, : block + 1] = table[: block + 1]
        keys = np.concatenate([lengths, tables.reshape(-1)])
        self._numbers.copy_(to_device(numbers, self._numbers.device))
        self._keys.copy_(to_device(keys, self._keys.device))


def _record_on_cuda(forwards: list[Forward]) -> list[Forward]:
    """CUDA graphs of them, which share memory: the largest first. Raises RuntimeError."""
    pool = None
    recorded = []
    for forward in forwards:
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UP):
                forward()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            logits = forward()
        pool = graph.pool()
        recorded.append(_replay(graph, logits))
    return recorded


def _replay(graph: torch.cuda.CUDAGraph, logits: torch.Tensor) -> Forward:
    def replay() -> torch.Tensor:
        graph.replay()
        return logits

    return replay
