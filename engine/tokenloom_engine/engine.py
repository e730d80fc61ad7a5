"""The engine: sequences in, one step at a time, tokens out."""

from __future__ import annotations

import logging
import time
from concurrent.futures import Future

import numpy as np

from tokenloom_engine.batch import Batch, Row
from tokenloom_engine.block_manager import BlockManager
from tokenloom_engine.config import EngineConfig
from tokenloom_engine.constraints.base import Bitmask, InvalidConstraintError
from tokenloom_engine.constraints.factory import CompiledConstraint, ConstraintFactory
from tokenloom_engine.messages import (
    EngineStats,
    ModelInfo,
    SequenceOutput,
    StepOutputs,
    Submit,
)
from tokenloom_engine.model_runner import ModelRunner
from tokenloom_engine.sampler import RowChoices, Sampler
from tokenloom_engine.scheduler import Scheduler, SchedulerLimits
from tokenloom_engine.sequence import Sequence

logger = logging.getLogger(__name__)

BITS = (np.uint32(1) << np.arange(32, dtype=np.uint32)).view(np.int32)
"""The words of a bitmask with one bit set."""


class Engine:
    """Runs all sequences together. Synchronous; one caller."""

    def __init__(self, config: EngineConfig) -> None:
        """Load the model. Raises LoadError."""
        self._config = config
        self._runner = ModelRunner(config)
        self.model: ModelInfo = self._runner.info
        self.vocabulary = self._runner.vocabulary
        self._constraints = ConstraintFactory.for_tokenizer(
            self._runner.tokenizer_json, self.model.vocab_size, self.model.eos_token_ids
        )
        self._sampler = Sampler(self.vocabulary.size)
        blocks = BlockManager(
            self._runner.num_blocks, config.block_size, prefix_caching=config.prefix_caching
        )
        limits = SchedulerLimits(
            max_batch_prefill_tokens=self.model.max_batch_prefill_tokens,
            max_batch_size=config.max_batch_size,
            waiting_served_ratio=config.waiting_served_ratio,
            max_waiting_tokens=config.max_waiting_tokens,
        )
        self._scheduler = Scheduler(blocks, limits)
        self._sequences: dict[int, Sequence] = {}
        self._compiling: dict[int, tuple[Future[CompiledConstraint], float]] = {}
        """By sequence: its constraint to come, and when to give up on it."""
        self._outputs: list[SequenceOutput] = []
        self._stats = EngineStats()

    @property
    def has_work(self) -> bool:
        """Whether `step` would run a forward or has something to say."""
        return bool(self._scheduler.running or self._scheduler.waiting or self._outputs)

    @property
    def is_compiling(self) -> bool:
        """Whether sequences wait for nothing but their constraints' compilation."""
        return bool(self._compiling)

    def submit(self, submit: Submit) -> None:
        """Take a sequence. What is wrong with it comes as its output's error."""
        sequence = Sequence(submit, self.vocabulary)
        self._sequences[submit.id] = sequence
        most = len(submit.prompt_ids) + submit.stopping.max_new_tokens
        if most > self.model.max_batch_total_tokens:
            sequence.fail(f"{most} tokens do not fit the KV cache")
            self._deliver(sequence)
        elif submit.constraint is None:
            self._scheduler.add(sequence)
        else:
            deadline = time.monotonic() + self._config.constraint_timeout_seconds
            self._compiling[submit.id] = self._constraints.compile(submit.constraint), deadline

    def abort(self, id: int) -> None:
        """Drop a sequence, if it is still there."""
        sequence = self._sequences.get(id)
        if sequence is not None:
            self._remove(sequence)

    def step(self) -> StepOutputs:
        """One forward for all that can run, and what came of it."""
        start = time.perf_counter()
        self._admit_compiled()
        rows = self._scheduler.schedule()
        if rows:
            try:
                self._advance(rows, self._run(rows))
            except Exception as error:
                logger.exception("a step failed; its sequences end")
                self._fail(rows, f"{type(error).__name__}: {error}")
        return self._take_outputs(rows, time.perf_counter() - start)

    def close(self) -> None:
        """Let helper threads end."""
        self._constraints.close()

    def _admit_compiled(self) -> None:
        for id, (future, deadline) in list(self._compiling.items()):
            if future.done():
                del self._compiling[id]
                self._admit(self._sequences[id], future)
            elif time.monotonic() > deadline:
                del self._compiling[id]
                self._sequences[id].fail("the constraint took too long to compile")
                self._deliver(self._sequences[id])

    def _admit(self, sequence: Sequence, future: Future[CompiledConstraint]) -> None:
        try:
            compiled = future.result()
            sequence.constraint = self._constraints.get_constraint(compiled)
        except InvalidConstraintError as error:
            sequence.fail(f"the constraint does not compile: {error}")
        except Exception as error:
            logger.exception("a constraint failed to compile; its sequence ends")
            sequence.fail(f"the constraint failed: {type(error).__name__}")
        else:
            sequence.compiled = compiled
            sequence.add_forced_tokens()
        if sequence.is_finished:
            self._deliver(sequence)
        else:
            self._scheduler.add(sequence)

    def _run(self, rows: list[Row]) -> list[RowChoices]:
        """The forward, with the bitmasks filled meanwhile, and the sampling."""
        masked = [i for i, row in enumerate(rows) if row.draws and row.sequence.constraint]
        bitmask, filling = self._start_filling([rows[i].sequence for i in masked])
        batch = Batch.pack(rows, self._config.block_size, self._runner.model.device)
        start = time.perf_counter()
        try:
            logits = self._runner.get_logits(batch)
        finally:
            # Nobody touches a constraint while it is being asked.
            mask_seconds = filling.result() if filling is not None else 0.0
        self._stats.forward_seconds = time.perf_counter() - start
        self._stats.mask_seconds = mask_seconds
        return self._sampler.sample(logits, rows, bitmask, masked)

    def _start_filling(
        self, sequences: list[Sequence]
    ) -> tuple[Bitmask | None, Future[float] | None]:
        """Begin to fill a bitmask row for each constrained sequence that draws in this step."""
        if not sequences:
            return None, None
        bitmask = self._constraints.allocate_bitmask(len(sequences))
        pairs = []
        for row, sequence in enumerate(sequences):
            assert sequence.constraint is not None
            forced = [] if sequence.submit.forced_tokens else sequence.constraint.forced_tokens()
            if forced:  # one at a time, yet the same tokens
                bitmask[row, forced[0] // 32] = BITS[forced[0] % 32]
            else:
                pairs.append((sequence.constraint, row))
        return bitmask, self._constraints.start_filling(pairs, bitmask) if pairs else None

    def _advance(self, rows: list[Row], choices: list[RowChoices]) -> None:
        for row, choice in zip(rows, choices, strict=True):
            sequence = row.sequence
            self._scheduler.commit(row)
            for scored in choice.scored:
                if not sequence.is_finished:
                    sequence.score(scored)
            if choice.drawn is not None and not sequence.is_finished:
                sequence.accept(choice.drawn)
            self._deliver(sequence)

    def _fail(self, rows: list[Row], message: str) -> None:
        for row in rows:
            if row.sequence.submit.id in self._sequences:
                row.sequence.fail(message)
                self._deliver(row.sequence)

    def _deliver(self, sequence: Sequence) -> None:
        output = sequence.take_output()
        if output is not None:
            self._stats.forced_tokens += sum(token.forced for token in output.tokens)
            self._outputs.append(output)
        if sequence.is_finished:
            self._remove(sequence)

    def _remove(self, sequence: Sequence) -> None:
        del self._sequences[sequence.submit.id]
        self._compiling.pop(sequence.submit.id, None)
        self._scheduler.remove(sequence)
        if sequence.constraint is not None and sequence.compiled is not None:
            self._constraints.return_constraint(sequence.compiled, sequence.constraint)

    def _take_outputs(self, rows: list[Row], seconds: float) -> StepOutputs:
        scheduler, stats = self._scheduler, self._stats
        stats.running = len(scheduler.running)
        stats.waiting = len(scheduler.waiting) + len(self._compiling)
        blocks = scheduler.blocks
        stats.used_tokens = (blocks.num_blocks - blocks.num_free) * blocks.block_size
        stats.total_tokens = blocks.num_blocks * blocks.block_size
        stats.batch_tokens = sum(row.count for row in rows)
        stats.prefill_sequences = sum(row.is_prefill for row in rows)
        stats.decode_sequences = len(rows) - stats.prefill_sequences
        stats.prefix_hit_tokens, scheduler.num_prefix_hit_tokens = (
            scheduler.num_prefix_hit_tokens,
            0,
        )
        stats.preemptions, scheduler.num_preemptions = scheduler.num_preemptions, 0
        stats.merges, scheduler.num_merges = scheduler.num_merges, 0
        stats.compile_seconds = self._constraints.take_compile_seconds()
        stats.step_seconds = seconds
        outputs, self._outputs, self._stats = self._outputs, [], EngineStats()
        return StepOutputs(outputs, stats)
