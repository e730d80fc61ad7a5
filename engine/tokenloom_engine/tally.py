"""What happens in a step, counted."""

from __future__ import annotations

from tokenloom_engine.constraints.factory import ConstraintFactory
from tokenloom_engine.forwards import Flight
from tokenloom_engine.messages import EngineStats, SequenceOutput
from tokenloom_engine.scheduler import Scheduler


class Tally:
    """Collects the statistics of one step after another."""

    def __init__(self, scheduler: Scheduler, constraints: ConstraintFactory) -> None:
        self._scheduler = scheduler
        self._constraints = constraints
        self._stats = EngineStats()

    def add_forward(self, flight: Flight, seconds: float) -> None:
        """The step's forward, and what it took."""
        stats = self._stats
        stats.batch_tokens = flight.num_tokens
        stats.prefill_sequences = sum(row.is_prefill for row in flight.rows)
        stats.decode_sequences = len(flight.rows) - stats.prefill_sequences
        stats.forward_seconds = seconds

    def add_failure(self, flight: Flight) -> None:
        """The step broke off."""
        self.add_forward(flight, 0.0)
        self._stats.failed = True

    def add_drafts(self, verified: int, right: int) -> None:
        """What became of a row's drafts."""
        self._stats.drafted_tokens += verified
        self._stats.accepted_tokens += right

    def add_output(self, output: SequenceOutput) -> None:
        """What a sequence says."""
        self._stats.forced_tokens += sum(token.forced for token in output.tokens)

    def take(self, num_pending: int, seconds: float) -> EngineStats:
        """The step's statistics. `num_pending`: sequences that wait for their constraints."""
        scheduler, blocks = self._scheduler, self._scheduler.blocks
        stats, self._stats = self._stats, EngineStats()
        stats.running = len(scheduler.running)
        stats.waiting = len(scheduler.waiting) + num_pending
        stats.used_tokens = (blocks.num_blocks - blocks.num_free) * blocks.block_size
        stats.total_tokens = blocks.num_blocks * blocks.block_size
        stats.prefix_hit_tokens = scheduler.num_prefix_hit_tokens
        stats.preemptions, stats.merges = scheduler.num_preemptions, scheduler.num_merges
        scheduler.num_prefix_hit_tokens = scheduler.num_preemptions = scheduler.num_merges = 0
        stats.compile_seconds = self._constraints.take_compile_seconds()
        stats.mask_seconds = self._constraints.take_mask_seconds()
        stats.step_seconds = seconds
        return stats
