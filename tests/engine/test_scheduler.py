"""Who runs, with how many tokens: budgets, order, merging, preemption."""

from __future__ import annotations

from typing import Any

import pytest

from tests.engine.running import submission
from tokenloom_engine.block_manager import BlockManager
from tokenloom_engine.choice import Choice
from tokenloom_engine.messages import LogprobParams
from tokenloom_engine.scheduler import Scheduler, SchedulerLimits
from tokenloom_engine.sequence import Sequence
from tokenloom_engine.vocabulary import Vocabulary

SIZE = 4


class Bench:
    """A scheduler whose sequences draw token 100 for ever."""

    def __init__(self, vocabulary: Vocabulary, num_blocks: int = 100, **limits: Any) -> None:  # noqa: ANN401
        self.vocabulary = vocabulary
        self.blocks = BlockManager(num_blocks, SIZE)
        settings = {"max_batch_prefill_tokens": 16, **limits}
        self.scheduler = Scheduler(self.blocks, SchedulerLimits(**settings))
        self.count = 0

    def add(self, prompt_len: int) -> Sequence:
        self.count += 1
        prompt = [self.count * 1000 + i for i in range(prompt_len)]
        submit = submission(self.count, prompt, 1000, logprobs=LogprobParams())
        sequence = Sequence(submit, self.vocabulary)
        self.scheduler.add(sequence)
        return sequence

    def step(self) -> dict[int, int]:
        """Returns the new tokens of each sequence."""
        rows = self.scheduler.schedule()
        for row in rows:
            assert len(row.sequence.block_table) * SIZE >= row.end, "a block for every token"
            self.scheduler.commit(row)
            if row.draws:
                row.sequence.accept(Choice(100))
        return {row.sequence.submit.id: row.count for row in rows}


def test_prefills_in_chunks_and_then_decodes(vocabulary: Vocabulary) -> None:
    bench = Bench(vocabulary)
    bench.add(40)
    assert [bench.step() for _ in range(5)] == [{1: 16}, {1: 16}, {1: 8}, {1: 1}, {1: 1}]


def test_decoding_sequences_run_in_every_step(vocabulary: Vocabulary) -> None:
    bench = Bench(vocabulary)
    bench.add(4)
    bench.step()
    bench.add(40)
    assert [bench.step() for _ in range(4)] == [{1: 1, 2: 16}, {1: 1, 2: 16}, {1: 1, 2: 8}] + [
        {1: 1, 2: 1}
    ]


def test_prompts_share_a_steps_budget_in_order_of_arrival(vocabulary: Vocabulary) -> None:
    bench = Bench(vocabulary)
    for length in (10, 10, 10):
        bench.add(length)
    assert bench.step() == {1: 10}, "no room for the whole of the second"
    assert bench.step() == {1: 1, 2: 10}
    assert bench.step() == {1: 1, 2: 1, 3: 10}


def test_short_prompts_fill_a_step_together(vocabulary: Vocabulary) -> None:
    bench = Bench(vocabulary)
    for length in (5, 6, 5, 1):
        bench.add(length)
    assert bench.step() == {1: 5, 2: 6, 3: 5}
    assert bench.step() == {1: 1, 2: 1, 3: 1, 4: 1}


def test_chunks_do_not_depend_on_the_crowd(vocabulary: Vocabulary) -> None:
    chunks = []
    for neighbours in (0, 3):
        bench = Bench(vocabulary)
        for _ in range(neighbours):
            bench.add(7)
        bench.add(40)
        sizes = [bench.step().get(neighbours + 1) for _ in range(6)]
        chunks.append([size for size in sizes if size is not None][:4])
    assert chunks == [[16, 16, 8, 1]] * 2


def test_max_batch_size_bounds_the_running(vocabulary: Vocabulary) -> None:
    bench = Bench(vocabulary, max_batch_size=2)
    first = bench.add(2)
    bench.add(2)
    bench.add(2)
    assert set(bench.step()) == {1, 2}
    bench.scheduler.remove(first)
    assert set(bench.step()) == {2, 3}


def test_waiting_served_ratio_holds_newcomers_back_for_max_waiting_tokens(
    vocabulary: Vocabulary,
) -> None:
    bench = Bench(vocabulary, waiting_served_ratio=1.0, max_waiting_tokens=3)
    bench.add(2)
    bench.add(2)
    bench.step()
    bench.add(2)
    sizes = [len(bench.step()) for _ in range(4)]
    assert sizes == [2, 2, 3, 3], "one waits for two running: not before the third step"
    bench.add(2)
    for _ in range(2):
        bench.add(2)
    assert len(bench.step()) == 6, "three wait for three running: at once"


def test_preempts_the_youngest_and_recomputes_it(vocabulary: Vocabulary) -> None:
    bench = Bench(vocabulary, num_blocks=6)
    old, young = bench.add(8), bench.add(8)
    tokens = []
    while bench.scheduler.num_preemptions == 0:
        bench.step()
        tokens.append(list(young.ids))
    assert old in bench.scheduler.running
    assert young in bench.scheduler.waiting and young.num_computed == 0
    assert young.ids == tokens[-1], "its tokens stay"
    bench.scheduler.remove(old)
    known = len(young.ids)
    assert bench.step()[2] <= known
    assert young.num_computed == known, "computed again"
    assert bench.blocks.num_free == bench.blocks.num_blocks - len(young.block_table)


def test_a_newcomer_waits_for_blocks_and_nobody_overtakes_it(vocabulary: Vocabulary) -> None:
    bench = Bench(vocabulary, num_blocks=8)
    big = bench.add(20)
    bench.add(20)
    bench.add(2)
    for _ in range(3):
        assert set(bench.step()) == {1}
    bench.scheduler.remove(big)
    assert 2 in bench.step()


def test_blocks_return_when_sequences_leave(vocabulary: Vocabulary) -> None:
    bench = Bench(vocabulary)
    sequences = [bench.add(length) for length in (3, 17, 30)]
    for _ in range(6):
        bench.step()
    waiting = bench.add(5)
    bench.scheduler.remove(waiting)
    for sequence in sequences:
        bench.scheduler.remove(sequence)
    assert bench.blocks.num_free == bench.blocks.num_blocks
    assert bench.step() == {}


@pytest.mark.parametrize("shared", [0, 4, 12])
def test_starts_behind_the_cached_prefix(vocabulary: Vocabulary, shared: int) -> None:
    bench = Bench(vocabulary)
    first = bench.add(16)
    bench.step()
    second = bench.add(16)
    second.ids[:shared] = first.ids[:shared]
    assert bench.step()[2] == 16 - shared


def test_a_prompt_is_cut_anywhere_if_that_does_not_matter(vocabulary: Vocabulary) -> None:
    bench = Bench(vocabulary, any_chunk=True)
    for length in (10, 10, 10):
        bench.add(length)
    assert bench.step() == {1: 10, 2: 6}
    assert bench.step() == {1: 1, 2: 4, 3: 10}


def test_one_beginning_of_many_prompts_is_computed_once(vocabulary: Vocabulary) -> None:
    bench = Bench(vocabulary, any_chunk=True)
    first = bench.add(38)
    for _ in range(3):
        bench.add(38).ids[:] = [*first.ids[:36], bench.count, bench.count]
    other = bench.add(6)
    assert bench.step() == {1: 16}
    assert bench.step() == {1: 16}
    assert bench.step() == {1: 6, 5: 6}, "who shares nothing does not wait"
    assert bench.step() == {1: 1, 2: 2, 3: 2, 4: 2, 5: 1}
    assert bench.scheduler.num_prefix_hit_tokens == 3 * 36
    assert not bench.scheduler.waiting and other in bench.scheduler.running


def test_who_waits_for_a_beginning_computes_it_when_the_other_one_leaves(
    vocabulary: Vocabulary,
) -> None:
    bench = Bench(vocabulary)
    first = bench.add(40)
    second = bench.add(40)
    second.ids[:] = first.ids
    assert bench.step() == {1: 16}
    assert bench.step() == {1: 16}
    bench.scheduler.remove(first)
    assert bench.step() == {2: 8}, "32 tokens were computed and stay"


def test_forced_tokens_of_many_sequences_share_the_budget_of_prompts(
    vocabulary: Vocabulary,
) -> None:
    bench = Bench(vocabulary, any_chunk=True)
    sequences = [bench.add(3) for _ in range(3)]
    bench.step()
    bench.add(20)
    for sequence in sequences:
        sequence.ids += [200] * 9
        sequence.num_scored += 9
    assert bench.step() == {1: 10, 2: 8, 3: 1}, "the last token of each is free"
    assert bench.step() == {1: 1, 2: 2, 3: 9, 4: 7}
    assert bench.step() == {1: 1, 2: 1, 3: 1, 4: 13}
