"""Steps of an engine in this process: decoding, prompts, memory, and a queue behind them."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

import torch

from benchmarks.torch_threads import torch_threads
from tokenloom_engine.block_manager import BlockHash
from tokenloom_engine.config import EngineConfig
from tokenloom_engine.engine import Engine
from tokenloom_engine.messages import SamplingParams, StoppingParams, Submit

WARM_UP = 3
"""Decode steps that are not measured."""
MARGIN = 256
"""Tokens that a sequence may grow by: in measured steps, and in those in which others join."""


@dataclass(slots=True)
class StepTimes:
    """Seconds of steps that all decoded the same sequences."""

    whole: list[float] = field(default_factory=list)
    forward: list[float] = field(default_factory=list)
    """The part of each in the model; empty where it is not known apart."""

    def extend(self, other: StepTimes) -> None:
        """Take another measurement of the same kind in."""
        self.whole += other.whole
        self.forward += other.forward


class EngineSteps:
    """Measures one engine."""

    def __init__(self, config: EngineConfig) -> None:
        self._threads = torch.get_num_threads()
        self.engine = Engine(config)
        self._uses_threads_of_torch = torch.get_num_threads() == self._threads
        torch.set_num_threads(self._threads)
        self._random = random.Random(0)
        self._next_id = 0

    @property
    def most_tokens(self) -> int:
        """The size of its KV cache."""
        return self.engine.model.max_batch_total_tokens

    def fits(self, rows: int, context: int) -> bool:
        """Whether so many sequences can be measured."""
        return rows * (context + MARGIN) <= self.most_tokens

    def touch_cache(self) -> None:
        """Write to the KV cache, for memory that was never written is not really read either."""
        backend = self.engine._runner.backend
        for tensor in _tensors(list(vars(backend).values())):
            if tensor.is_floating_point():
                tensor.fill_(0.01)

    def decode(self, rows: int, context: int, steps: int) -> StepTimes:
        """Steps in which each of `rows` sequences of about `context` tokens gets one more.

        Only the ends of their prompts are computed. The rest is said to be in the prefix cache: a
        step takes as long whatever the keys and values are.
        """
        with self._its_threads():
            ids = [self._submit(context, is_known=True) for _ in range(rows)]
            self._until_all_decode(rows)
            times = self._measure(steps)
            self._abort(ids)
        return times

    def decode_before_queue(self, rows: int, context: int, steps: int, waiting: int) -> StepTimes:
        """The same, while so many others wait for room that there is not."""
        with self._its_threads():
            ids = [self._submit(context) for _ in range(rows)]
            self._until_all_decode(rows)
            blocks = self.engine._scheduler.blocks
            free = blocks.num_free * blocks.block_size
            ids += [self._submit(free + 1) for _ in range(waiting)]
            self._until_all_decode(rows)
            times = self._measure(steps)
            assert self.engine.step().stats.waiting == waiting
            self._abort(ids)
        return times

    def prefill(self, context: int) -> float:
        """Seconds to compute a prompt of so many tokens, and draw one."""
        with self._its_threads():
            id = self._submit(context)
            start = time.perf_counter()
            while not self.engine.step().outputs:
                pass
            seconds = time.perf_counter() - start
            self._abort([id])
        return seconds

    def close(self) -> None:
        """Let the engine's threads end."""
        self.engine.close()

    def _its_threads(self) -> AbstractContextManager[None]:
        return torch_threads(self._threads if self._uses_threads_of_torch else 1)

    def _submit(self, prompt_tokens: int, *, is_known: bool = False) -> int:
        self._next_id += 1
        width = self.engine.vocabulary.size
        prompt_ids = self._random.choices(range(width), k=prompt_tokens)
        if is_known:
            self._pretend_computed(prompt_ids)
        stopping = StoppingParams(max_new_tokens=MARGIN - 1, ignore_eos=True)
        self.engine.submit(
            Submit(
                id=self._next_id,
                prompt_ids=prompt_ids,
                sampling=SamplingParams(),
                stopping=stopping,
            )
        )
        return self._next_id

    def _pretend_computed(self, ids: list[int]) -> None:
        blocks = self.engine._scheduler.blocks
        hashes: list[BlockHash] = []
        blocks.extend_hashes(hashes, ids, (len(ids) - 1) // blocks.block_size)
        allocated = blocks.allocate(len(hashes))
        assert allocated is not None
        for block, block_hash in zip(allocated, hashes, strict=True):
            blocks.cache(block, block_hash)
        blocks.release(allocated)

    def _until_all_decode(self, rows: int) -> None:
        while True:
            stats = self.engine.step().stats
            if stats.prefill_sequences == 0 and stats.decode_sequences == rows:
                return

    def _measure(self, steps: int) -> StepTimes:
        times = StepTimes()
        for step in range(WARM_UP + steps):
            start = time.perf_counter()
            outputs = self.engine.step()
            if step >= WARM_UP:
                times.whole.append(time.perf_counter() - start)
                times.forward.append(outputs.stats.forward_seconds)
        return times

    def _abort(self, ids: list[int]) -> None:
        for id in ids:
            self.engine.abort(id)


def _tensors(value: object) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)
