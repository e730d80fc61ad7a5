"""The engine: sequences in, one step at a time, tokens out."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import msgspec

from tokenloom_engine.batch import Batch, Row
from tokenloom_engine.block_manager import BlockManager
from tokenloom_engine.config import EngineConfig
from tokenloom_engine.constraints.factory import ConstraintFactory
from tokenloom_engine.drafts import DEFAULT_MOST, Drafter
from tokenloom_engine.errors import LoadError
from tokenloom_engine.forward_clock import ForwardClock
from tokenloom_engine.logits_processors import LogitsProcessors, ProcessorContext, ProcessorError
from tokenloom_engine.memory import limit_cuda_memory
from tokenloom_engine.messages import (
    EngineStats,
    ModelInfo,
    SequenceOutput,
    StepOutputs,
    Submit,
)
from tokenloom_engine.model_runner import ModelRunner
from tokenloom_engine.pending_constraints import PendingConstraints
from tokenloom_engine.place import Draws, RowChoices
from tokenloom_engine.prospect import prospects
from tokenloom_engine.sampler import Sampler
from tokenloom_engine.scheduler import Scheduler, SchedulerLimits
from tokenloom_engine.sequence import Sequence
from tokenloom_engine.step_masks import StepMasks
from tokenloom_engine.watermark import Watermark

logger = logging.getLogger(__name__)


class Engine:
    """Runs all sequences together. Synchronous; one caller."""

    def __init__(
        self, config: EngineConfig, on_lost_shard: Callable[[], None] = lambda: None
    ) -> None:
        """Load the model. Raises LoadError.

        `on_lost_shard` is called in another thread when one of several shards has ended. A step
        that runs then may never end, and no later one works.
        """
        self._config = config
        limit_cuda_memory(config.cuda_memory_fraction)
        self._runner = ModelRunner(config, on_lost_shard=on_lost_shard)
        self._processors = _load_processors(self._runner)
        self.model: ModelInfo = msgspec.structs.replace(
            self._runner.info, logits_processors=self._processors.names
        )
        self.vocabulary = self._runner.vocabulary
        self._constraints = _load_constraints(self._runner, config)
        self._sampler = Sampler(
            self.vocabulary.size,
            Watermark(config.watermark_gamma, config.watermark_delta),
            self._runner.kernels,
            self._runner.model.device,
        )
        blocks = BlockManager(
            self._runner.num_blocks, self._runner.block_size, prefix_caching=config.prefix_caching
        )
        limits = SchedulerLimits(
            max_batch_prefill_tokens=self.model.max_batch_prefill_tokens,
            any_chunk=self._runner.model.is_batch_invariant,
            max_batch_size=config.max_batch_size,
            waiting_served_ratio=config.waiting_served_ratio,
            max_waiting_tokens=config.max_waiting_tokens,
        )
        self._scheduler = Scheduler(blocks, limits)
        self._most_drafts = config.speculate
        if self._most_drafts is None:
            self._most_drafts = DEFAULT_MOST if self._runner.model.is_batch_invariant else 0
        self._clock = ForwardClock(self._runner.model.device)
        self._sequences: dict[int, Sequence] = {}
        self._masks = StepMasks(self._constraints, self._clock)
        self._pending = PendingConstraints(self._constraints, config.constraints.timeout_seconds)
        self._outputs: list[SequenceOutput] = []
        self._stats = EngineStats()

    @property
    def has_work(self) -> bool:
        """Whether `step` would run a forward or has something to say."""
        return bool(self._scheduler.running or self._scheduler.waiting or self._outputs)

    @property
    def is_compiling(self) -> bool:
        """Whether sequences wait for nothing but their constraints' compilation."""
        return bool(self._pending)

    def submit(self, submit: Submit) -> None:
        """Take a sequence. What is wrong with it comes as its output's error."""
        sequence = Sequence(submit, self.vocabulary)
        self._sequences[submit.id] = sequence
        most = len(submit.prompt_ids) + submit.stopping.max_new_tokens
        if most > self.model.max_batch_total_tokens:
            sequence.fail(f"{most} tokens do not fit the KV cache")
        else:
            self._take_processors(sequence)
            if self._most_drafts and not sequence.processors:
                sequence.drafter = Drafter(sequence.ids, self._most_drafts)
        if sequence.is_finished:
            self._deliver(sequence)
        elif submit.constraint is None:
            self._scheduler.add(sequence)
        else:
            self._pending.start(sequence, submit.constraint)

    def abort(self, id: int) -> None:
        """Drop a sequence, if it is still there."""
        sequence = self._sequences.get(id)
        if sequence is not None:
            self._remove(sequence)

    def step(self) -> StepOutputs:
        """One forward for all that can run, and what came of it."""
        start = time.perf_counter()
        self._admit_compiled()
        self._add_forced_tokens()
        rows = self._scheduler.schedule()
        if rows:
            try:
                self._advance(rows, self._run(rows))
            except Exception as error:
                logger.exception("a step failed; its sequences end")
                self._stats.failed = True
                self._fail(rows, f"{type(error).__name__}: {error}")
        else:
            # All of them are late, or nobody is there.
            self._masks.wait_for_any(self._scheduler.running)
        return self._take_outputs(rows, time.perf_counter() - start)

    def close(self) -> None:
        """Let helper threads end, and other shards."""
        self._constraints.close()
        self._runner.close()

    def _take_processors(self, sequence: Sequence) -> None:
        try:
            sequence.processors = self._processors.take(sequence.submit.logits_processors)
        except ValueError as error:
            sequence.refuse(f"`logits_processors`: {error}")
        except ProcessorError as error:
            sequence.fail(str(error))

    def _admit_compiled(self) -> None:
        for sequence in self._pending.take_settled():
            if sequence.is_finished:
                self._deliver(sequence)
            else:
                self._scheduler.add(sequence)

    def _add_forced_tokens(self) -> None:
        """Let the running constraints say what must follow, as soon as their masks are ready."""
        for sequence in self._masks.ready_for_forced_tokens(self._scheduler.running):
            sequence.add_forced_tokens()
            if sequence.is_finished:
                self._deliver(sequence)

    def _run(self, rows: list[Row]) -> list[RowChoices]:
        """The forward, with bitmasks filled meanwhile, and the sampling."""
        drawing = [i for i, row in enumerate(rows) if row.draws]
        self._masks.start(rows[i].sequence for i in drawing if not rows[i].drafts)
        self._masks.look_ahead(rows[i] for i in drawing if rows[i].drafts)
        model = self._runner.model
        batch = Batch.pack(
            rows, self._runner.block_size, model.device, twin=not model.is_batch_invariant
        )
        self._clock.start()
        logits = self._runner.get_logits(batch)
        self._clock.stop()
        waiting = [rows[i].sequence for i in drawing]
        self._masks.wait_beside_forward(waiting, are_all=len(waiting) == len(rows))
        draws: Draws = {
            i: prospects(rows[i].sequence, rows[i].drafts)
            for i in drawing
            if not rows[i].sequence.is_late
        }
        choices = self._sampler.sample(logits, rows, draws)
        self._stats.forward_seconds = self._clock.seconds
        return choices

    def _advance(self, rows: list[Row], choices: list[RowChoices]) -> None:
        known = [len(row.sequence.ids) for row in rows]
        for row, choice in zip(rows, choices, strict=True):
            _take(row.sequence, choice)
        # While blocks are shared, the outputs are sent, and the next step is made up.
        self._masks.start(row.sequence for row in rows if not row.sequence.is_finished)
        for row, num_known in zip(rows, known, strict=True):
            sequence = row.sequence
            # Who is late computes its last token again, for another chance to draw.
            num_right = max(0, len(sequence.ids) - num_known - 1)
            self._scheduler.commit(sequence, row.known_end - sequence.is_late + num_right)
            self._stats.drafted_tokens += len(row.drafts)
            self._stats.accepted_tokens += num_right
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
        self._scheduler.remove(sequence)
        self._processors.give_back(sequence.processors)
        self._pending.drop(sequence)
        self._masks.give_back(sequence)

    def _take_outputs(self, rows: list[Row], seconds: float) -> StepOutputs:
        scheduler, stats = self._scheduler, self._stats
        stats.running = len(scheduler.running)
        stats.waiting = len(scheduler.waiting) + len(self._pending)
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
        stats.mask_seconds = self._constraints.take_mask_seconds()
        stats.step_seconds = seconds
        if rows and not stats.failed:
            scheduler.draft_budget.observe(stats.batch_tokens, stats.forward_seconds)
        outputs, self._outputs, self._stats = self._outputs, [], EngineStats()
        return StepOutputs(outputs, stats)


def _take(sequence: Sequence, choice: RowChoices) -> None:
    """Let a sequence have what was computed for it."""
    for scored in choice.scored:
        if not sequence.is_finished:
            sequence.score(scored)
    drawn = [*choice.accepted, choice.drawn] if choice.drawn is not None else []
    for index, token in enumerate(drawn):
        if not sequence.is_finished:
            sequence.accept(token, is_extra=index > 0)
    if choice.error is not None and not sequence.is_finished:
        sequence.fail(choice.error)


def _load_processors(runner: ModelRunner) -> LogitsProcessors:
    info = runner.info
    return LogitsProcessors.load(
        ProcessorContext(
            vocab_size=info.vocab_size,
            eos_token_ids=tuple(info.eos_token_ids),
            tokenizer_file=info.tokenizer_file,
            device=info.device,
        )
    )


def _load_constraints(runner: ModelRunner, config: EngineConfig) -> ConstraintFactory:
    try:
        return ConstraintFactory.for_tokenizer(
            runner.tokenizer_json,
            runner.info.vocab_size,
            runner.info.eos_token_ids,
            config.constraints,
        )
    except ImportError as error:
        raise LoadError(f"a constraint back end is not installed: {error}") from error
