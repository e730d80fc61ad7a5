"""The engine: sequences in, one step at a time, tokens out."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import msgspec
import torch

from tokenloom_engine.batch import Row
from tokenloom_engine.block_manager import BlockManager
from tokenloom_engine.cgroup import usable_cores
from tokenloom_engine.config import EngineConfig
from tokenloom_engine.constraints.factory import ConstraintFactory, UnsupportedKindError
from tokenloom_engine.constraints.latency import Latency
from tokenloom_engine.drafts import DEFAULT_MOST, Drafter
from tokenloom_engine.errors import DeviceError, LoadError
from tokenloom_engine.forward_clock import ForwardClock
from tokenloom_engine.forwards import Flight, Forwards
from tokenloom_engine.logits_processors import LogitsProcessors, ProcessorContext, ProcessorError
from tokenloom_engine.memory import limit_cuda_memory
from tokenloom_engine.messages import ModelInfo, SequenceOutput, StepOutputs, Submit
from tokenloom_engine.model_runner import ModelRunner
from tokenloom_engine.pending_constraints import PendingConstraints
from tokenloom_engine.place import RowChoices
from tokenloom_engine.request_id import working_for
from tokenloom_engine.sampler import Sampler
from tokenloom_engine.scheduler import Scheduler, SchedulerLimits
from tokenloom_engine.sequence import Sequence
from tokenloom_engine.step_masks import StepMasks
from tokenloom_engine.tally import Tally
from tokenloom_engine.watermark import Watermark

logger = logging.getLogger(__name__)


class Engine:
    """Runs all sequences together. Synchronous; one caller.

    A step launches a forward, draws from its logits, lets each sequence take its tokens, and puts
    them into words. Where the device computes beside the host, the next forward is launched before
    the words: then one is in flight between the steps.
    """

    def __init__(
        self,
        config: EngineConfig,
        on_lost_shard: Callable[[], None] = lambda: None,
        latency: Latency | None = None,
    ) -> None:
        """Load the model. Raises LoadError.

        `latency` judges which constraints are slow, and how long a step waits for one. Its clock
        times the forwards of a CPU, too, which tell what drafts cost.
        `on_lost_shard` is called in another thread when one of several shards has ended. A step
        that runs then may never end, and no later one works.
        """
        limit_cuda_memory(config.cuda_memory_fraction)
        self._runner = ModelRunner(config, on_lost_shard=on_lost_shard)
        model = self._runner.model
        self._processors = _load_processors(self._runner)
        self.model: ModelInfo = msgspec.structs.replace(
            self._runner.info, logits_processors=self._processors.names
        )
        self.vocabulary = self._runner.vocabulary
        self._latency = latency or Latency()
        self._constraints = _load_constraints(self._runner, config, self._latency)
        blocks = BlockManager(
            self._runner.num_blocks, self._runner.block_size, prefix_caching=config.prefix_caching
        )
        limits = SchedulerLimits(
            max_batch_prefill_tokens=self.model.max_batch_prefill_tokens,
            any_chunk=model.is_batch_invariant,
            max_batch_size=config.max_batch_size,
            waiting_served_ratio=config.waiting_served_ratio,
            max_waiting_tokens=config.max_waiting_tokens,
            rope_limit=model.rope_ranges.limit if model.rope_ranges is not None else None,
        )
        self._scheduler = Scheduler(blocks, limits)
        self._most_drafts = config.speculate
        if self._most_drafts is None:
            self._most_drafts = DEFAULT_MOST if model.is_batch_invariant else 0
        self._pending = PendingConstraints(self._constraints, config.constraints.timeout_seconds)
        clock = ForwardClock(model.device, self._latency.clock.wall)
        self._masks = StepMasks(self._constraints, clock)
        watermark = Watermark(config.watermark_gamma, config.watermark_delta)
        sampler = Sampler(
            self.vocabulary.size,
            watermark,
            self._runner.kernels,
            model.device,
            self.vocabulary.holes,
        )
        self._forwards = Forwards(self._runner, clock, self._masks, sampler)
        self._flight: Flight | None = None
        early = config.launch_early
        self.launches_early = model.device.type == "cuda" if early is None else early
        """Whether the next forward begins before the last tokens are put into words."""
        self._tally = Tally(self._scheduler, self._constraints)
        self._sequences: dict[int, Sequence] = {}
        self._unheard: list[Sequence] = []
        """Those that took something in this step, and are to say it."""
        self._outputs: list[SequenceOutput] = []

    @property
    def has_work(self) -> bool:
        """Whether `step` would run a forward, or end one, or has something to say."""
        has_sequences = bool(self._scheduler.running or self._scheduler.waiting)
        return has_sequences or self._flight is not None or bool(self._outputs)

    @property
    def is_compiling(self) -> bool:
        """Whether sequences wait for nothing but their constraints' compilation."""
        return bool(self._pending)

    def submit(self, submit: Submit) -> None:
        """Take a sequence. What is wrong with it comes as its output's error."""
        sequence = Sequence(submit, self.vocabulary, says_at_once=not self.launches_early)
        self._sequences[submit.id] = sequence
        most = len(submit.prompt_ids) + submit.stopping.max_new_tokens
        if most > self.model.max_batch_total_tokens:
            sequence.fail(f"{most} tokens do not fit the KV cache")
        else:
            self._take_processors(sequence)
            if self._most_drafts and not sequence.processors:
                sequence.drafter = Drafter(sequence.ids, self._most_drafts)
        if sequence.is_over:
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
        """One forward for all that can run, and what came of it.

        Raises DeviceError if there can be no other one.
        """
        start = time.perf_counter()
        if self._flight is None:
            self._launch()
        flight, self._flight = self._flight, None
        if flight is None:
            # All of them are late, or nobody is there.
            self._masks.wait_for_any(self._scheduler.running)
        else:
            start = min(start, flight.started_at)
            self._land(flight)
            if self.launches_early:
                self._launch()
        self._say()
        outputs, self._outputs = self._outputs, []
        stats = self._tally.take(len(self._pending), time.perf_counter() - start)
        return StepOutputs(outputs, stats)

    def close(self) -> None:
        """Let helper threads end, and other shards."""
        self._constraints.close()
        self._runner.close()

    def _take_processors(self, sequence: Sequence) -> None:
        submit = sequence.submit
        try:
            with working_for(submit.request_id):
                sequence.processors = self._processors.take(submit.logits_processors)
        except ValueError as error:
            sequence.refuse(f"`logits_processors`: {error}")
        except ProcessorError as error:
            sequence.fail(str(error))

    def _launch(self) -> None:
        """Begin a forward over all that can run."""
        self._admit_compiled()
        self._add_forced_tokens()
        rows = self._scheduler.schedule()
        if not rows:
            return
        flight = self._forwards.launch(rows)
        for row in flight.broken:
            self._note(row.sequence)
        if flight.rows:
            self._flight = flight

    def _admit_compiled(self) -> None:
        for sequence in self._pending.take_settled():
            if sequence.is_over:
                self._deliver(sequence)
            else:
                self._scheduler.add(sequence)

    def _add_forced_tokens(self) -> None:
        """Let the running constraints say what must follow, as soon as their masks are ready."""
        for sequence in self._masks.ready_for_forced_tokens(self._scheduler.running):
            try:
                sequence.add_forced_tokens()
            except Exception as error:
                sequence.break_off(error)
            self._note(sequence)

    def _land(self, flight: Flight) -> None:
        """Give the sequences of a forward what came of it."""
        try:
            drawn = self._forwards.draw(flight)
            seconds = self._forwards.seconds
            self._tally.add_forward(flight, seconds)
            self._scheduler.draft_budget.observe(flight.num_tokens, seconds)
            if not any(row.is_prefill for row in flight.rows):
                self._latency.observe_step(seconds)
            self._take(drawn)
        except torch.AcceleratorError as error:
            # Not one for want of memory: whatever is asked of the device now fails as well.
            raise DeviceError(f"the device failed: {str(error).splitlines()[0]}") from error
        except Exception as error:
            logger.exception("a step failed; its sequences end")
            self._tally.add_failure(flight)
            for row in flight.rows:
                if not row.sequence.has_left:
                    row.sequence.fail(f"{type(error).__name__}: {error}")
                    self._note(row.sequence)

    def _take(self, drawn: list[tuple[Row, RowChoices]]) -> None:
        known = [len(row.sequence.ids) for row, _ in drawn]
        for row, choices in drawn:
            try:
                _give(row.sequence, choices)
            except Exception as error:
                row.sequence.break_off(error)
        # While blocks are shared, and the next step is made up or the outputs are sent.
        self._masks.start(row.sequence for row, _ in drawn if not row.sequence.is_over)
        for (row, _), num_known in zip(drawn, known, strict=True):
            sequence = row.sequence
            num_right = max(0, len(sequence.ids) - num_known - 1)
            try:
                self._scheduler.commit(row, num_right)
            except Exception as error:
                sequence.break_off(error)
            self._tally.add_drafts(len(row.drafts), num_right)
            self._note(sequence)

    def _note(self, sequence: Sequence) -> None:
        """It took something, and is heard when the step's forwards are under way.

        If it is over, its blocks are free. Who has them next writes later than whatever is in
        flight, for a device does one forward after another.
        """
        self._unheard.append(sequence)
        if sequence.is_over:
            self._scheduler.remove(sequence)

    def _say(self) -> None:
        """Have the sequences put into words what they took."""
        unheard, self._unheard = dict.fromkeys(self._unheard), []
        for sequence in unheard:
            if sequence.has_left:
                continue  # an interrupt kept it from saying so in its own step
            try:
                self._deliver(sequence)
            except Exception as error:
                sequence.break_off(error)
                self._deliver(sequence)

    def _deliver(self, sequence: Sequence) -> None:
        sequence.say()
        output = sequence.take_output()
        if output is not None:
            self._tally.add_output(output)
            if output.error is not None:
                with working_for(sequence.submit.request_id):
                    logger.error("Sequence %d failed: %s", output.id, output.error)
            self._outputs.append(output)
        if sequence.is_finished:
            self._remove(sequence)

    def _remove(self, sequence: Sequence) -> None:
        del self._sequences[sequence.submit.id]
        sequence.has_left = True
        self._scheduler.remove(sequence)
        if sequence.processors:
            with working_for(sequence.submit.request_id):
                self._processors.give_back(sequence.processors)
        self._pending.drop(sequence)
        self._masks.give_back(sequence)


def _give(sequence: Sequence, choices: RowChoices) -> None:
    """Let a sequence have what was computed for it."""
    for scored in choices.scored:
        if not sequence.is_over:
            sequence.score(scored)
    drawn = [*choices.accepted, choices.drawn] if choices.drawn is not None else []
    for index, token in enumerate(drawn):
        if not sequence.is_over:
            sequence.accept(token, is_extra=index > 0)
    if choices.error is not None and not sequence.is_over:
        sequence.fail(choices.error)


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


def _load_constraints(
    runner: ModelRunner, config: EngineConfig, latency: Latency
) -> ConstraintFactory:
    try:
        return ConstraintFactory.for_tokenizer(
            runner.tokenizer_json,
            runner.info.vocab_size,
            runner.info.eos_token_ids,
            config.constraints,
            num_threads=max(1, usable_cores() // config.replicas),
            latency=latency,
        )
    except ImportError as error:
        raise LoadError(f"a constraint back end is not installed: {error}") from error
    except UnsupportedKindError as error:
        raise LoadError(str(error)) from error
