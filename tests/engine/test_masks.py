"""Masks that are slow or cannot be had: whose they are waits or ends, the neighbours go on."""

from __future__ import annotations

import gc
import hashlib
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.engine.clocks import manual_latency
from tests.engine.conftest import Encode
from tests.engine.running import Result, run, submission
from tokenloom_engine.config import EngineConfig
from tokenloom_engine.constraints.base import Bitmask, Constraint, ConstraintBackend
from tokenloom_engine.constraints.latency import Latency
from tokenloom_engine.constraints.mask_filler import MaskFiller
from tokenloom_engine.constraints.masks import TRIED_MASKS, CompiledConstraint, wait_for
from tokenloom_engine.constraints.spec import ConstraintSpec
from tokenloom_engine.engine import Engine
from tokenloom_engine.messages import EngineStats

STORY = "Once upon a time there was a small town"
NUMBER = ConstraintSpec("regex", "[0-9]{12}")
PERSON = ConstraintSpec(
    "json_schema",
    json.dumps({"type": "object", "properties": {"name": {"enum": ["Ann", "Bob"]}, "age": {}}}),
)
BLOCK = bytes(1_000_000)
Rows = Sequence[tuple[Constraint, int]]


@pytest.fixture(scope="module")
def engine(model_path: Path) -> Iterator[Engine]:
    """One that waits for masks no longer than a server does."""
    config = EngineConfig(
        model_id=str(model_path), dtype="float32", max_batch_total_tokens=4096, block_size=16
    )
    engine = Engine(config)
    yield engine
    engine.close()
    del engine
    gc.collect()


@pytest.fixture
def backend(engine: Engine) -> ConstraintBackend:
    """The engine's own, to be tampered with."""
    return engine._constraints._backends["llguidance"]


def tamper(
    monkeypatch: pytest.MonkeyPatch, backend: ConstraintBackend, before: Callable[[Rows], None]
) -> None:
    """Have `before` called with the rows of each filling."""
    fill = backend.fill_bitmasks

    def tampered(rows: Rows, bitmask: Bitmask) -> None:
        before(rows)
        fill(rows, bitmask)

    monkeypatch.setattr(backend, "fill_bitmasks", tampered)


def burn(seconds: float) -> None:
    """Work for so long, without the GIL: what is slow is told by the CPU time that it takes."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        hashlib.sha256(BLOCK)


@pytest.mark.timing
def test_who_waits_for_a_mask_sits_out_and_says_the_same(
    engine: Engine,
    encode: Encode,
    backend: ConstraintBackend,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    alone = run(engine, [submission(0, encode("My number is "), 16, constraint=NUMBER)])[0]
    free = run(engine, [submission(1, encode(STORY), 24)])[1]
    tamper(monkeypatch, backend, lambda rows: burn(0.08))
    sizes: list[int] = []

    def note(stats: EngineStats) -> None:
        sizes.append(stats.decode_sequences)

    submits = [
        submission(0, encode("My number is "), 16, constraint=NUMBER),
        submission(1, encode(STORY), 24),
    ]
    results = run(engine, submits, after_step=note)
    assert results[0].ids == alone.ids, "late, but the same"
    assert [t.logprob for t in results[0].tokens] == pytest.approx(
        [t.logprob for t in alone.tokens], abs=1e-3
    )
    assert results[1].ids == free.ids
    assert sizes.count(1) > 6, "the free sequence had steps of its own meanwhile"


@pytest.mark.timing
def test_tokens_that_are_forced_are_called_so_also_when_that_is_known_late(
    engine: Engine,
    encode: Encode,
    backend: ConstraintBackend,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spec = ConstraintSpec("regex", "(yes|no), that is what they told us")
    submits = [submission(0, encode(STORY), 24, constraint=spec)]
    early = run(engine, submits)[0]
    tamper(monkeypatch, backend, lambda rows: burn(0.03))
    # A step of this sequence alone waits for its mask, however busy the machine is.
    patient = replace(engine._latency.limits, lonely_patience=60)
    monkeypatch.setattr(engine, "_latency", Latency(patient))
    monkeypatch.setattr(engine._constraints, "latency", engine._latency)
    steps: list[EngineStats] = []
    late = run(engine, submits, after_step=steps.append)[0]
    assert late.ids == early.ids
    assert [t.forced for t in late.tokens] == [t.forced for t in early.tokens]
    assert early.finish is not None and late.finish is not None
    assert late.finish.forced_tokens == early.finish.forced_tokens > 4
    single = sum(stats.forced_tokens == 1 and stats.batch_tokens == 1 for stats in steps)
    assert single > 0, "one of them was drawn, though it was the only one"


def test_tokens_that_must_follow_one_by_one_need_no_masks(
    engine: Engine,
    encode: Encode,
    backend: ConstraintBackend,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spec = ConstraintSpec("regex", "(yes|no), that is what they told us")
    together = run(engine, [submission(0, encode(STORY), 24, constraint=spec)])[0]
    fillings: list[int] = []
    tamper(monkeypatch, backend, lambda rows: fillings.append(len(rows)))
    submit = submission(0, encode(STORY), 24, constraint=spec, forced_tokens=False)
    single = run(engine, [submit])[0]
    assert single.ids == together.ids and not any(t.forced for t in single.tokens)
    assert [t.logprob for t in single.tokens] == pytest.approx(
        [t.logprob for t in together.tokens], abs=1e-3
    )
    assert 0 < len(fillings) < len(single.ids) / 2


@pytest.mark.timing
def test_who_is_late_for_long_does_not_keep_the_engine_busy(
    engine: Engine,
    encode: Encode,
    backend: ConstraintBackend,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    steps: list[EngineStats] = []
    tamper(monkeypatch, backend, lambda rows: burn(0.1))
    submit = submission(0, encode(STORY), 5, constraint=NUMBER)
    start = time.perf_counter()
    result = run(engine, [submit], after_step=steps.append)[0]
    seconds = time.perf_counter() - start
    assert len(result.tokens) == 5, result.error or result.refusal
    idle = sum(stats.running > 0 and stats.batch_tokens == 0 for stats in steps)
    assert 0 < idle < 1000 * seconds, "it waits in the step; it does not spin"


def test_a_mask_that_cannot_be_filled_ends_its_own_sequence(
    engine: Engine,
    encode: Encode,
    backend: ConstraintBackend,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    submits = [
        submission(0, encode("A number: "), 16, constraint=NUMBER),
        submission(1, encode("A person: "), 16, constraint=PERSON),
        submission(2, encode(STORY), 16),
    ]
    alone = {i: run(engine, [submit])[i] for i, submit in enumerate(submits)}
    numbers = 0

    def break_numbers(rows: Rows) -> None:
        nonlocal numbers
        for constraint, _ in rows:
            if constraint.validate_tokens(encode("7")) == 1 and not constraint.is_accepting:
                numbers += 1
                if numbers > 3:
                    raise RuntimeError("no")

    tamper(monkeypatch, backend, break_numbers)
    results = run(engine, submits)
    assert results[0].error == "the constraint failed: RuntimeError"
    assert results[0].tokens, "it failed on the way"
    assert results[1].ids == alone[1].ids
    assert results[2].ids == alone[2].ids


@pytest.mark.parametrize("method", ["accept_tokens", "forced_tokens"])
def test_a_constraint_that_raises_ends_its_own_sequence(
    engine: Engine, encode: Encode, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    submits = [
        submission(0, encode("A number: "), 8, constraint=NUMBER),
        submission(1, encode(STORY), 8),
    ]
    free = run(engine, submits)[1]
    compiled = engine._constraints.compile(NUMBER).result()
    compiled.pool[:] = [engine._constraints.get_constraint(compiled)]

    def broken(*_: object) -> None:
        raise ValueError("no")

    monkeypatch.setattr(compiled.pool[0], method, broken)
    results = run(engine, submits)
    assert results[0].error == "the constraint failed: ValueError"
    assert results[1].ids == free.ids
    compiled.pool.clear()


def test_leaving_while_a_mask_is_made_returns_the_constraint_later(
    engine: Engine,
    encode: Encode,
    backend: ConstraintBackend,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spec = ConstraintSpec("regex", "[0-9]{40}")
    compiled = engine._constraints.compile(spec).result()
    tamper(monkeypatch, backend, lambda rows: burn(0.1))
    engine.submit(submission(0, encode(STORY), 40, constraint=spec))
    while not (sequence := engine._sequences[0]).num_generated:
        engine.step()
    held = sequence.constraint
    assert held is not None and held.mask is not None and not held.mask.is_ready
    mask, constraint = held.mask, held.constraint
    engine.abort(0)
    assert not compiled.pool, "it is still being asked"
    mask.filled.result()
    deadline = time.monotonic() + 10
    while not compiled.pool and time.monotonic() < deadline:
        time.sleep(0.01)
    assert compiled.pool == [constraint]
    monkeypatch.undo()
    again: Result = run(engine, [submission(1, encode(STORY), 60, constraint=spec)])[1]
    assert len(again.text) == 40


class Fake(str):
    """A constraint to a fake back end."""

    is_dear = False


@pytest.mark.timing
def test_slow_masks_are_filled_beside_the_quick_ones() -> None:
    class Backend:
        def fill_bitmasks(self, rows: Rows, bitmask: NDArray[np.int32]) -> None:
            for constraint, row in rows:
                burn(float(str(constraint)))
                bitmask[row] = row + 1

    backend = Backend()
    slow, quick = (CompiledConstraint(NUMBER, backend) for _ in range(2))  # type: ignore[arg-type]
    filler = MaskFiller(2, num_threads=2, latency=Latency())
    rows = [(slow, Fake("0.3")), (quick, Fake("0")), (quick, Fake("0"))]
    wait_for(filler.start(rows), 60)  # type: ignore[arg-type]
    assert [c.is_slow for c in (slow, quick)] == [True, False]
    masks = filler.start(rows)  # type: ignore[arg-type]
    wait_for(masks[1:], 60)
    assert [mask.is_ready for mask in masks] == [False, True, True]
    wait_for(masks, 60)
    assert [mask.allowed.tolist() for mask in masks] == [[1, 1], [2, 2], [3, 3]]
    assert filler.take_seconds() > 0.5
    filler.close()


def test_many_quick_masks_are_filled_together_by_the_caller() -> None:
    together: list[int] = []

    class Backend:
        def fill_bitmasks(self, rows: Rows, bitmask: NDArray[np.int32]) -> None:
            together.append(len(rows))
            for constraint, row in rows:
                if str(constraint) == "broken":
                    raise RuntimeError
                bitmask[row] = row + 1

    compiled = CompiledConstraint(NUMBER, Backend())  # type: ignore[arg-type]
    filler = MaskFiller(2, num_threads=2, latency=manual_latency())
    fine = Fake("fine")
    for _ in range(TRIED_MASKS):
        wait_for(filler.start([(compiled, fine)]), 60)  # type: ignore[list-item]
    together.clear()
    masks = filler.start([(compiled, fine)] * 20)  # type: ignore[list-item]
    assert together == [20]
    assert all(mask.is_ready and mask.error is None for mask in masks)
    assert [mask.allowed.tolist() for mask in masks] == [[i + 1] * 2 for i in range(20)]
    rows = [(compiled, Fake("broken") if i == 7 else fine) for i in range(20)]
    masks = filler.start(rows)  # type: ignore[arg-type]
    assert [i for i, mask in enumerate(masks) if mask.error == "RuntimeError"] == [7]
    assert [mask.allowed[0] for i, mask in enumerate(masks) if i != 7] == [
        i + 1 for i in range(20) if i != 7
    ]
    filler.close()
