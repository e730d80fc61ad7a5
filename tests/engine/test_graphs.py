"""Recorded decode forwards: their buckets, padding and fixed places, without a GPU run anew."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.engine.conftest import Encode
from tests.engine.running import run, submission
from tests.engine.varlen import attend_by_varlen, tiny_engine
from tokenloom_engine.attention.varlen import VarlenAttention
from tokenloom_engine.batch import Batch, Row
from tokenloom_engine.config import EngineConfig
from tokenloom_engine.engine import Engine
from tokenloom_engine.graphs import DecodeGraphs, Forward

PROMPTS = ("The capital of France is", "Once upon a time there was a dog that " * 6, "1, 2, 3, ")


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory, model_path: Path) -> Iterator[Engine]:
    engine = tiny_engine(tmp_path_factory.mktemp("tiny"), model_path)
    attend_by_varlen(engine)
    yield engine
    engine.close()
    del engine
    gc.collect()


def graphs_of(engine: Engine, sizes: tuple[int, ...], longest: int = 128) -> DecodeGraphs:
    """As on a GPU, but that a recording is the forward itself, run again on the same places."""
    backend = engine._runner.backend
    assert isinstance(backend, VarlenAttention)
    return DecodeGraphs(
        engine._runner.model, backend, sizes, longest, record=lambda forwards: forwards
    )


def test_padded_rows_have_the_logits_of_a_packed_batch(engine: Engine, encode: Encode) -> None:
    """For each number of rows, down and up again: what a larger batch left behind is gone."""
    runner = engine._runner
    graphs = graphs_of(engine, (4, 1, 8))
    assert graphs.sizes == [1, 4, 8]
    for i in range(7):
        engine.submit(submission(i, encode(PROMPTS[i % 3])[: 5 + 9 * i], 40, ignore_eos=True))
    while engine.step().stats.decode_sequences < 7:
        pass
    rows = [
        Row(s, s.num_computed, s.num_to_compute, is_prefill=False)
        for s in engine._scheduler.running
    ]
    scratch = [cache[-1] for caches in runner.backend._caches.values() for cache in caches]  # type: ignore[attr-defined]
    for count, size in ((7, 8), (1, 1), (3, 4), (2, 4), (5, 8), (4, 4)):
        part = rows[:count]
        assert graphs.size_for(part) == size
        found = graphs.logits(part, size).clone()
        batch = Batch.pack(part, runner.block_size, runner.model.device, twin=False)
        torch.testing.assert_close(found, runner.get_logits(batch))
    assert all(cache[1:].count_nonzero() == 0 for cache in scratch), "padding writes to one place"
    for i in range(7):
        engine.abort(i)


def test_only_rows_of_one_token_and_its_logits_take_one(engine: Engine, encode: Encode) -> None:
    graphs = graphs_of(engine, (1, 2), longest=30)
    for i, prompt in enumerate(PROMPTS):
        engine.submit(submission(i, encode(prompt), 40, ignore_eos=True))
    while engine.step().stats.decode_sequences < 3:
        pass
    sequences = engine._scheduler.running
    last = [Row(s, len(s.ids) - 1, 1, is_prefill=False) for s in sequences]
    short = [row for row in last if row.end <= 32]
    assert len(short) == 2 and graphs.size_for(short) == 2
    assert graphs.size_for(last) is None, "more rows than any, and one that is too long"
    assert graphs.size_for([row for row in last if row.end > 32]) is None
    assert graphs.size_for([Row(short[0].sequence, 0, 1, is_prefill=True)]) is None, "no logits"
    assert graphs.size_for([Row(short[0].sequence, 0, 2, is_prefill=True)]) is None
    for i in range(len(PROMPTS)):
        engine.abort(i)


def test_an_engine_decodes_by_them(
    engine: Engine, encode: Encode, monkeypatch: pytest.MonkeyPatch
) -> None:
    def tokens() -> list[list[int]]:
        submits = [submission(i, encode(text), 16) for i, text in enumerate(PROMPTS)]
        results = run(engine, submits, steps_between=2)
        return [results[i].ids for i in range(len(PROMPTS))]

    expected = tokens()
    runs = []

    def record(forwards: list[Forward]) -> list[Forward]:
        def counted(forward: Forward) -> Forward:
            return lambda: (runs.append(forward), forward())[1]  # type: ignore[func-returns-value]

        return [counted(forward) for forward in forwards]

    backend = engine._runner.backend
    assert isinstance(backend, VarlenAttention)
    graphs = DecodeGraphs(engine._runner.model, backend, (1, 2, 4), 256, record=record)
    monkeypatch.setattr(engine._runner, "graphs", graphs)
    assert tokens() == expected
    assert len(runs) > 12 and len({id(forward) for forward in runs}) > 1


def test_a_forward_that_cannot_be_recorded_runs_as_before(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    def record(forwards: list[Forward]) -> list[Forward]:
        raise RuntimeError("operation not permitted when stream is capturing\nmore of it")

    backend = engine._runner.backend
    assert isinstance(backend, VarlenAttention)
    graphs = DecodeGraphs(engine._runner.model, backend, (1, 2), 64, record=record)
    assert graphs.sizes == []
    assert "No CUDA graphs" in caplog.text and "not permitted when stream" in caplog.text


def test_on_a_cpu_the_flag_has_no_effect_and_says_so(
    tmp_path: Path, model_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    engine = tiny_engine(tmp_path, model_path, cuda_graphs=(1, 2))
    assert engine._runner.graphs is None
    assert "--cuda-graphs has no effect" in caplog.text
    caplog.clear()
    for sizes in (None, (0,)):
        engine = Engine(
            EngineConfig(model_id=str(tmp_path), dtype="float32", block_size=16, cuda_graphs=sizes)
        )
        engine.close()
    assert "cuda-graphs" not in caplog.text
