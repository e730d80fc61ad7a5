"""Blocks of the KV cache under late masks, forced runs, drafts, preemption and leaving clients."""

from __future__ import annotations

import gc
import json
import random
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from tests.engine.running import Result, run, submission
from tests.engine.scripted import FREE, Gate, ScriptedBackend, ScriptedConstraint, scripted_spec
from tokenloom_engine.batch import Row
from tokenloom_engine.config import EngineConfig
from tokenloom_engine.constraints.masks import wait_for
from tokenloom_engine.draft_budget import DraftBudget
from tokenloom_engine.drafts import Drafter, Guess
from tokenloom_engine.engine import Engine
from tokenloom_engine.messages import EngineStats, LogprobParams, Submit
from tokenloom_engine.scheduler import Scheduler
from tokenloom_engine.sequence import Sequence

CACHE_TOKENS = 176
SEEDS = range(3)
SETTINGS: dict[str, dict[str, Any]] = {
    "kernels": {"block_size": 16},
    "kernels, launched early": {"block_size": 32, "launch_early": True},
    "torch, launched early": {
        "block_size": 7,
        "launch_early": True,
        "disable_custom_kernels": True,
    },
}


@pytest.fixture(scope="module")
def tiny_model(tmp_path_factory: pytest.TempPathFactory, model_path: Path) -> Path:
    """A random model whose decoder the kernels compute as a whole."""
    folder = tmp_path_factory.mktemp("tiny")
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=49152,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=CACHE_TOKENS,
        bos_token_id=1,
        eos_token_id=2,
        initializer_range=0.2,
        tie_word_embeddings=True,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    AutoTokenizer.from_pretrained(model_path).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module", params=SETTINGS)
def engine(request: pytest.FixtureRequest, tiny_model: Path) -> Iterator[Engine]:
    engine = Engine(
        EngineConfig(
            model_id=str(tiny_model),
            max_batch_total_tokens=CACHE_TOKENS,
            max_batch_prefill_tokens=24,
            speculate=4,
            **SETTINGS[request.param],
        )
    )
    yield engine
    engine.close()
    del engine
    gc.collect()


@pytest.fixture
def gate(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    """What the masks of scripted constraints wait behind. The engine waits for none for long."""
    gate = Gate()
    backend = ScriptedBackend(gate)
    monkeypatch.setitem(engine._constraints._backends, "llguidance", backend)
    monkeypatch.setattr(
        "tokenloom_engine.step_masks.wait_for", lambda masks, seconds: wait_for(masks, 0.0005)
    )
    monkeypatch.setattr(DraftBudget, "least_odds", lambda *_: 0.0)
    yield gate
    gate.open()


def check_blocks(scheduler: Scheduler, rows: list[Row]) -> None:
    """Every position that is or will be computed has a block, and every block its holders."""
    blocks = scheduler.blocks
    holders: Counter[int] = Counter()
    for sequence in scheduler.running:
        table = sequence.block_table
        assert len(set(table)) == len(table), "a block twice in one table"
        assert sequence.num_computed <= len(table) * blocks.block_size
        holders.update(table)
    assert not any(sequence.block_table for sequence in scheduler.waiting)
    assert blocks._references == [holders[block] for block in range(blocks.num_blocks)]
    assert set(blocks._free) == {block for block in range(blocks.num_blocks) if not holders[block]}
    for row in rows:
        sequence = row.sequence
        assert sequence in scheduler.running
        assert 0 <= row.start == sequence.num_computed < row.known_end <= len(sequence.ids)
        assert row.end <= len(sequence.block_table) * blocks.block_size, "a token without a block"
        for index in range(row.start // blocks.block_size, len(sequence.block_table)):
            assert holders[sequence.block_table[index]] == 1, "it writes to a shared block"


def watch(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, check: Callable[[Scheduler, list[Row]], None]
) -> None:
    """Have `check` called after each schedule."""
    scheduler = engine._scheduler
    schedule = scheduler.schedule

    def watched() -> list[Row]:
        rows = schedule()
        check(scheduler, rows)
        return rows

    monkeypatch.setattr(scheduler, "schedule", watched)


def drawn_submits(draw: random.Random) -> list[Submit]:
    """Some sequences, with and without a constraint, which the cache cannot hold together."""
    start = [draw.randrange(10, 9000) for _ in range(40)]
    submits = []
    for id in range(draw.randrange(5, 9)):
        prompt = start[: draw.randrange(41)] + [draw.randrange(10, 9000)] * draw.randrange(1, 40)
        count = draw.randrange(8, 70)
        submits.append(
            submission(
                id,
                prompt,
                count,
                constraint=scripted_spec(draw.randrange(10**9), count) if id % 3 else None,
                forced_tokens=draw.random() < 0.8,
                logprobs=LogprobParams(tokens=draw.random() < 0.5, prompt=draw.random() < 0.2),
                ignore_eos=True,
            )
        )
    return submits


def run_in_steps(
    engine: Engine, submits: list[Submit], gate: Gate, steps_between: int = 2
) -> tuple[dict[int, Result], int]:
    """Run all, a step of the gate for each of the engine's; returns the preemptions as well."""
    num_steps = preemptions = 0

    def after_step(stats: EngineStats) -> None:
        nonlocal num_steps, preemptions
        num_steps += 1
        preemptions += stats.preemptions
        gate.next_step()
        assert num_steps < 5000, "it does not come to an end"

    results = run(engine, submits, steps_between=steps_between, after_step=after_step)
    return results, preemptions


@pytest.mark.parametrize("prompt_len", [30, 31, 32, 33])
def test_what_is_forced_behind_a_late_mask_has_a_block(
    engine: Engine, gate: Gate, monkeypatch: pytest.MonkeyPatch, prompt_len: int
) -> None:
    """A mask that is late at the end of the prompt, and a forced run that begins a new block."""
    watch(engine, monkeypatch, check_blocks)
    monkeypatch.setattr(ScriptedConstraint, "__post_init__", _late_then_forced)
    submits = [
        submission(0, [7] * prompt_len, 40, constraint=scripted_spec(0, 40), ignore_eos=True),
        submission(1, [8] * 20, 40, ignore_eos=True),
    ]
    results, _ = run_in_steps(engine, submits, gate)
    for result in results.values():
        assert result.finish is not None, result.error
        assert len(result.ids) == 40


def _late_then_forced(constraint: ScriptedConstraint) -> None:
    """Nothing but forced tokens; every mask but the first is two steps late."""
    constraint.at_once = 100
    constraint.is_forced = [True] * constraint.num_tokens
    constraint.delays = [0] + [2] * (constraint.num_tokens - 1)


def test_blocks_add_up_whatever_comes_together(
    engine: Engine, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch(engine, monkeypatch, check_blocks)
    blocks = engine._scheduler.blocks
    preemptions = 0
    for seed in SEEDS:
        draw = random.Random(seed)
        submits = drawn_submits(draw)
        results, count = run_in_steps(engine, submits, gate, draw.randrange(4))
        preemptions += count
        for submit in submits:
            result = results[submit.id]
            assert result.finish is not None, (seed, result.error)
            assert len(result.ids) == submit.stopping.max_new_tokens
            if submit.constraint is not None:
                script = ScriptedConstraint(**json.loads(submit.constraint.value))
                assert all(script.allows(i, id) for i, id in enumerate(result.ids))
        assert blocks.num_free == blocks.num_blocks
        if engine._runner.model.is_batch_invariant:
            gate.open()
            for submit in submits:
                assert run(engine, [submit])[submit.id].ids == results[submit.id].ids
            gate.close()
    assert preemptions > 0, "the cache was meant to be too small"


def test_blocks_of_clients_that_leave_are_free(
    engine: Engine, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch(engine, monkeypatch, check_blocks)
    draw = random.Random(5)
    submits = drawn_submits(draw)
    for submit in submits:
        engine.submit(submit)
    for submit in draw.sample(submits, len(submits)):
        for _ in range(draw.randrange(12)):
            engine.step()
            gate.next_step()
        engine.abort(submit.id)
    engine.step()
    assert engine._scheduler.blocks.num_free == engine._scheduler.blocks.num_blocks


def test_drafts_whose_masks_are_always_late_do_not_stop_the_text(
    engine: Engine, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ScriptedConstraint, "__post_init__", _free_but_late)
    monkeypatch.setattr(Drafter, "guess", lambda *_: Guess([FREE[5]] * 3, [1.0] * 3))
    submit = submission(0, [7] * 20, 12, constraint=scripted_spec(0, 12), ignore_eos=True)
    results, _ = run_in_steps(engine, [submit], gate)
    assert len(results[0].ids) == 12


def _free_but_late(constraint: ScriptedConstraint) -> None:
    """Nothing is forced, and every mask is late."""
    constraint.at_once = 1
    constraint.is_forced = [False] * constraint.num_tokens
    constraint.delays = [0] + [1] * (constraint.num_tokens - 1)


def _forced_in_runs(constraint: ScriptedConstraint) -> None:
    """Two forced tokens, two free ones, and so on; no mask is late."""
    constraint.at_once = 100
    constraint.is_forced = [i % 4 < 2 for i in range(constraint.num_tokens)]
    constraint.delays = [0] * constraint.num_tokens


FAULTS: dict[str, tuple[object, str]] = {
    "a token": (Sequence, "accept"),
    "a score": (Sequence, "score"),
    "what may be drawn": (Sequence, "outlooks"),
    "a guess": (Sequence, "guess"),
    "drafts": (Sequence, "drafts"),
    "a path": (Sequence, "path"),
    "what is forced": (Sequence, "add_forced_tokens"),
    "words": (Sequence, "say"),
}


@pytest.mark.parametrize("fault", [*FAULTS, "a hash", "a block"])
def test_a_fault_in_the_bookkeeping_of_a_sequence_ends_it_alone(
    engine: Engine, gate: Gate, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    gate.open()
    monkeypatch.setattr(Drafter, "guess", lambda *_: Guess([FREE[5]], [1.0]))
    monkeypatch.setattr(ScriptedConstraint, "__post_init__", _forced_in_runs)
    submits = [
        submission(i, [7 + i] * 40, 20, constraint=scripted_spec(i, 20), ignore_eos=True)
        for i in range(3)
    ]
    scheduler = engine._scheduler
    whole = run(engine, submits)
    num_faults = 0

    def is_hit(sequence: Sequence) -> bool:
        nonlocal num_faults
        is_hit = sequence.submit.id == 1 and sequence.num_generated > 6 and num_faults == 0
        num_faults += is_hit
        return is_hit

    if fault == "a hash":
        commit = scheduler.commit

        def broken_commit(row: Row, *given: int) -> None:
            if is_hit(row.sequence):
                raise IndexError("no such block")
            commit(row, *given)

        monkeypatch.setattr(scheduler, "commit", broken_commit)
    elif fault == "a block":

        def take_block(scheduler: Scheduler, rows: list[Row]) -> None:
            for row in rows:
                if is_hit(row.sequence):
                    scheduler.blocks.release([row.sequence.block_table.pop()])

        watch(engine, monkeypatch, take_block)
    else:
        owner, name = FAULTS[fault]
        method = getattr(owner, name)

        def broken(sequence: Sequence, *given: Any, **named: Any) -> Any:  # noqa: ANN401
            if is_hit(sequence):
                raise IndexError("no such thing")
            return method(sequence, *given, **named)

        monkeypatch.setattr(owner, name, broken)
    results = run(engine, submits)
    assert num_faults == 1
    assert results[1].error is not None and "IndexError: " in results[1].error
    for id in (0, 2):
        assert results[id].finish is not None, results[id].error
        if engine._runner.model.is_batch_invariant:
            assert results[id].ids == whole[id].ids
    assert scheduler.blocks.num_free == scheduler.blocks.num_blocks
