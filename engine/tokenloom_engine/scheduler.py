"""Who runs in the next step, and with how many tokens each."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace

from tokenloom_engine.batch import Row
from tokenloom_engine.block_manager import BlockHash, BlockManager
from tokenloom_engine.draft_budget import DraftBudget
from tokenloom_engine.drafts import Guess
from tokenloom_engine.sequence import Sequence

LONG_TEXT: BlockHash = b"long text"
"""What the blocks of a text beyond the rotary embedding's limit are named after: the same tokens
have other keys there."""
LOOK_AHEAD = 64
"""How many sequences that wait for others' blocks a step passes over, to start one behind them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerLimits:
    """TGI's budgets."""

    max_batch_prefill_tokens: int
    """Prompt tokens a step computes at most: the size of a prefill chunk."""
    any_chunk: bool = False
    """Whether a prompt may be cut anywhere: its logits are bitwise the same."""
    max_batch_size: int | None = None
    """Sequences that run at most."""
    waiting_served_ratio: float = 0.0
    """Merge waiting sequences only when they are so many for each running one..."""
    max_waiting_tokens: int = 20
    """...or the running ones have had so many steps."""
    rope_limit: int | None = None
    """Longest text that is computed with the first of the rotary embedding's two sets of factors;
    None is any."""


class Scheduler:
    """The waiting and the running sequences, and the blocks they hold.

    Each step serves the decoding sequences first, so no stream waits for somebody's long
    prompt, then fills up with chunks of prompts in order of arrival. Without a free block the
    youngest sequence is preempted: it waits, and is computed again.
    """

    def __init__(self, blocks: BlockManager, limits: SchedulerLimits) -> None:
        self.blocks = blocks
        self.limits = limits
        self.draft_budget = DraftBudget()
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.num_preemptions = 0
        self.num_merges = 0
        self.num_prefix_hit_tokens = 0
        self._steps_since_merge = 0

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence."""
        if self._outgrows(sequence):
            sequence.lengthen()
        self.waiting.append(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Drop a sequence, finished or not, and free its blocks."""
        if sequence in self.running:
            self.running.remove(sequence)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)
        self.blocks.release(sequence.block_table)
        sequence.block_table = []

    def schedule(self) -> list[Row]:
        """The next step's rows, with blocks for all their tokens. Empty if nobody is there."""
        if self.limits.rope_limit is not None:
            self._recompute_outgrown()
        self._reserve_running()
        rows, budget = self._decode_rows(self.limits.max_batch_prefill_tokens)
        budget = self._add_prefill_rows(rows, budget)
        if self._may_merge():
            self._admit(rows, budget)
        self._steps_since_merge += 1
        rows = self._with_drafts(rows)
        # Rows of one shape lie side by side, so that a back end can attend them as one.
        return sorted(rows, key=lambda row: (row.count, row.end))

    def commit(self, row: Row, num_right: int = 0) -> None:
        """After the forward: the row's tokens are computed, and full blocks can be shared.

        `num_right`: how many of its drafts turned out to be right. A sequence that is late computes
        its last token again, for another chance to draw.
        """
        sequence = row.sequence
        if row.known_end >= sequence.prefill_end:
            sequence.prefill_end = 0
        sequence.num_computed = row.known_end - sequence.is_late + num_right
        if not self.blocks.prefix_caching:
            return
        num_full = sequence.num_computed // self.blocks.block_size
        self._extend_hashes(sequence, num_full)
        for index in range(sequence.num_cached_blocks, num_full):
            self.blocks.cache(sequence.block_table[index], sequence.block_hashes[index])
        sequence.num_cached_blocks = max(sequence.num_cached_blocks, num_full)

    def _outgrows(self, sequence: Sequence) -> bool:
        """Whether it has come to the second set of the rotary embedding's factors."""
        limit = self.limits.rope_limit
        return limit is not None and not sequence.is_long and len(sequence.ids) > limit

    def _recompute_outgrown(self) -> None:
        """Let those that have outgrown the limit prefill all that they know, as long texts.

        They keep their place in the batch, unless there are no blocks for that.
        """
        for sequence in [s for s in self.running if self._outgrows(s)]:
            self.blocks.release(sequence.block_table)
            sequence.lengthen()
            if not self._start(sequence):
                self.running.remove(sequence)
                self.waiting.appendleft(sequence)

    def _extend_hashes(self, sequence: Sequence, count: int) -> None:
        """Name the first `count` full blocks of a sequence, where they have no name yet."""
        root = LONG_TEXT if sequence.is_long else b""
        self.blocks.extend_hashes(sequence.block_hashes, sequence.ids, count, root)

    def _reserve_running(self) -> None:
        """Give the running sequences, the oldest first, blocks for all tokens that they know.

        Tokens may have been forced since a sequence got its blocks, in a prompt's prefill as well.
        """
        for sequence in list(self.running):
            if sequence.block_table:  # else it was preempted for one before it
                self._reserve(sequence)

    def _decode_rows(self, budget: int) -> tuple[list[Row], int]:
        """Those of sequences whose prompts are in, and what they leave of the budget.

        The last token of each is free. Those before it, which were forced, count as a prompt's do
        where chunks may have any size: many sequences may come to the next fixed part of their
        schemas together, and would hold up all others.
        """
        rows = []
        for sequence in self.running:
            if sequence.is_prefilling or sequence.is_late:
                continue
            count = sequence.num_to_compute
            if self.limits.any_chunk:
                count = min(count, 1 + budget)
                budget -= count - 1
            rows.append(Row(sequence, sequence.num_computed, count, is_prefill=False))
        return rows, budget

    def _with_drafts(self, rows: list[Row]) -> list[Row]:
        """The rows, those that decode with guesses of what follows, where these pay."""
        budget = self.draft_budget
        if all(row.is_prefill for row in rows):
            return rows
        num_tokens = sum(row.count for row in rows)
        num_sequences = len(self.running) + len(self.waiting)
        least = budget.least_odds(num_tokens, num_sequences)
        guesses = [_guess(row, least) for row in rows]
        counts = budget.share(guesses, num_tokens, num_sequences)
        return [
            self._with_draft(row, guess.ids[:count]) if count else row
            for row, guess, count in zip(rows, guesses, counts, strict=True)
        ]

    def _with_draft(self, row: Row, guessed: list[int]) -> Row:
        """The row with these tokens, as far as they are possible and there are blocks for them."""
        sequence = row.sequence
        try:
            drafts = sequence.drafts(guessed)
        except Exception as error:
            sequence.break_off(error)
            return row
        if self.limits.rope_limit is not None and not sequence.is_long:
            drafts = drafts[: max(0, self.limits.rope_limit - row.end)]
        needed = self.blocks.num_blocks_for(row.end + len(drafts))
        missing = needed - len(sequence.block_table)
        if missing > 0:
            sequence.block_table += self.blocks.allocate(missing) or []
        room = len(sequence.block_table) * self.blocks.block_size - row.end
        drafts = drafts[:room]
        return replace(row, count=row.count + len(drafts), drafts=drafts)

    def _add_prefill_rows(self, rows: list[Row], budget: int) -> int:
        for sequence in self.running:
            if sequence.is_prefilling:
                budget = self._add_chunk(rows, sequence, budget)
        return budget

    def _add_chunk(self, rows: list[Row], sequence: Sequence, budget: int) -> int:
        """Add the next chunk, if the budget has room for it; returns what is left, else 0.

        Where the size of a chunk matters to rounding, a chunk is as large as the step allows or
        ends the prompt, whatever else is in the step: a prompt shall be computed in a crowd as it
        is alone.
        """
        if self.limits.any_chunk:
            count = min(sequence.num_to_compute, budget)
        else:
            count = min(sequence.num_to_compute, self.limits.max_batch_prefill_tokens)
        if not 0 < count <= budget:
            return 0
        rows.append(Row(sequence, sequence.num_computed, count, is_prefill=True))
        return budget - count

    def _may_merge(self) -> bool:
        if not self.waiting:
            return False
        enough = len(self.waiting) >= self.limits.waiting_served_ratio * len(self.running)
        return enough or self._steps_since_merge >= self.limits.max_waiting_tokens

    def _admit(self, rows: list[Row], budget: int) -> None:
        max_size = self.limits.max_batch_size
        was_running = bool(self.running)
        computing = self._blocks_being_computed()
        held: list[Sequence] = []
        while self.waiting and budget and (max_size is None or len(self.running) < max_size):
            sequence = self.waiting.popleft()
            if self._waits_for(sequence, computing):
                held.append(sequence)
                if len(held) < LOOK_AHEAD:
                    continue
                break
            if not self._start(sequence):
                self.waiting.appendleft(sequence)
                break
            self.running.append(sequence)
            computing.update(self._prefix_hashes(sequence)[sequence.num_cached_blocks :])
            self.num_merges += was_running
            self._steps_since_merge = 0
            budget = self._add_chunk(rows, sequence, budget)
        self.waiting.extendleft(reversed(held))

    def _blocks_being_computed(self) -> set[BlockHash]:
        """Blocks of prompts that the prefix cache will have in a step or a few."""
        return {
            block_hash
            for sequence in self.running
            if sequence.is_prefilling
            for block_hash in self._prefix_hashes(sequence)[sequence.num_cached_blocks :]
        }

    def _waits_for(self, sequence: Sequence, computing: set[BlockHash]) -> bool:
        """Whether a sequence's next block is just being computed for another one.

        It then waits and finds the block in the cache: siblings of one request, and requests with
        one long beginning, have it computed once.
        """
        if not computing:
            return False
        hashes = self._prefix_hashes(sequence)
        num_cached = len(self.blocks.match_prefix(hashes))
        return num_cached < len(hashes) and hashes[num_cached] in computing

    def _prefix_hashes(self, sequence: Sequence) -> list[BlockHash]:
        """Of the blocks that the prefix cache may give it: of the rest, logits are wanted."""
        if not self.blocks.prefix_caching:
            return []
        most = min(sequence.num_scored, len(sequence.ids)) - 1
        count = most // self.blocks.block_size
        self._extend_hashes(sequence, count)
        return sequence.block_hashes[:count]

    def _start(self, sequence: Sequence) -> bool:
        """Give a waiting sequence the blocks of everything it knows, if they are free."""
        cached = self.blocks.match_prefix(self._prefix_hashes(sequence))
        new = self.blocks.num_blocks_for(len(sequence.ids)) - len(cached)
        # One block in hand for each running sequence, or the newcomer would soon preempt one.
        if new + len(self.running) > self.blocks.num_free - self.blocks.num_free_among(cached):
            return False
        self.blocks.hold(cached)
        allocated = self.blocks.allocate(new)
        assert allocated is not None
        sequence.block_table = cached + allocated
        sequence.num_cached_blocks = len(cached)
        num_cached = len(cached) * self.blocks.block_size
        self.num_prefix_hit_tokens += num_cached
        sequence.start(num_cached)
        return True

    def _reserve(self, sequence: Sequence) -> None:
        """Make room for what it is to compute, preempting the youngest, perhaps itself."""
        needed = self.blocks.num_blocks_for(sequence.num_computed + sequence.num_to_compute)
        missing = needed - len(sequence.block_table)
        while missing > 0 and sequence.block_table:
            allocated = self.blocks.allocate(missing)
            if allocated is not None:
                sequence.block_table += allocated
                return
            self._preempt(self.running[-1])

    def _preempt(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self.blocks.release(sequence.block_table)
        sequence.preempt()
        self.waiting.appendleft(sequence)
        self.num_preemptions += 1


def _guess(row: Row, least: float) -> Guess:
    """What may follow the row's tokens; nothing while its known tokens are computed."""
    if row.is_prefill or not row.draws:
        return Guess()
    try:
        return row.sequence.guess(least)
    except Exception as error:
        row.sequence.break_off(error)
        return Guess()
