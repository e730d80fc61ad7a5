"""A constraint does not hold the thread of all sequences: it puts off what is dear, or is ended."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.engine.clocks import ManualTime, manual_latency
from tests.engine.conftest import Encode, MakeEngine
from tests.engine.running import run, submission
from tokenloom_engine.config import EngineConfig
from tokenloom_engine.constraints.allowance import Allowance
from tokenloom_engine.constraints.backends.llguidance.constraint import LlguidanceConstraint
from tokenloom_engine.constraints.backends.llguidance.cost import Cost
from tokenloom_engine.constraints.base import Constraint, InvalidConstraintError
from tokenloom_engine.constraints.factory import ConstraintFactory
from tokenloom_engine.constraints.latency import MOST_SCALE, Latency, LatencyLimits
from tokenloom_engine.constraints.masks import TRIED_AGAIN, TRIED_MASKS, CompiledConstraint
from tokenloom_engine.constraints.spec import ConstraintSpec
from tokenloom_engine.engine import Engine

TOO_DEAR = "it takes more than 5 ms for a token"
WORD = "abcdefghij"
LIMITS = LatencyLimits()
STEP_SECONDS = LIMITS.allowed_call


def _alternatives(count: int, behind: str = "x") -> ConstraintSpec:
    """Arrays of themselves, in so many ways: each token is looked at in all of them."""
    element = {"$ref": "#/$defs/e"}
    branches = [{"type": "array", "items": element, "minItems": 1 + i % 3} for i in range(count)]
    schema = {
        "$defs": {"e": {"anyOf": branches}},
        "type": "object",
        "properties": {"s": {"type": "string", "pattern": f"^{behind}$"}, "a": element},
        "required": ["s", "a"],
        "additionalProperties": False,
    }
    return ConstraintSpec("json_schema", json.dumps(schema))


@pytest.fixture(scope="module")
def factory(tokenizer_file: Path) -> Iterator[ConstraintFactory]:
    factory = ConstraintFactory.for_tokenizer(tokenizer_file.read_text(), 49152, [2])
    yield factory
    factory.close()


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> ManualTime:
    """A clock by which accepting takes long, in a library that cannot do it aside."""
    now = ManualTime()
    accept = LlguidanceConstraint.accept_tokens

    def accept_dearly(constraint: LlguidanceConstraint, ids: Sequence[int]) -> bool:
        now.advance(4 * MOST_SCALE * STEP_SECONDS)
        return accept(constraint, ids)

    monkeypatch.setattr(LlguidanceConstraint, "accept_tokens", accept_dearly)
    return now


def test_it_shows_in_a_rehearsal(tokenizer_file: Path, now: ManualTime) -> None:
    factory = ConstraintFactory.for_tokenizer(
        tokenizer_file.read_text(), 49152, [2], latency=manual_latency(now)
    )
    dear = ConstraintSpec("regex", "[ab]{9}c")
    with pytest.raises(InvalidConstraintError) as raised:
        factory.validate(dear)
    assert str(raised.value) == TOO_DEAR
    schema = ConstraintSpec("json_schema", '{"type": "string"}')
    start = time.thread_time()
    assert factory.find_fault(schema, TOO_DEAR) is None
    assert time.thread_time() - start < 0.1, "parts are not tried: the whole is to blame"
    factory.close()


def test_what_can_be_put_off_is_not_refused(factory: ConstraintFactory) -> None:
    assert factory.validate(_alternatives(200)) == []


def test_it_ends_its_own_sequence(model_path: Path, encode: Encode, now: ManualTime) -> None:
    """Where nobody rehearsed it, or it becomes dear later."""
    config = EngineConfig(model_id=str(model_path), max_batch_total_tokens=1024)
    engine = Engine(config, latency=manual_latency(now))
    prompt = encode("Once upon a time")
    results = run(
        engine,
        [
            submission(0, prompt, 40, constraint=ConstraintSpec("regex", "[ab]{30}")),
            submission(1, prompt, 40, ignore_eos=True),
        ],
    )
    assert results[0].error == f"the constraint failed: {TOO_DEAR}"
    assert results[0].is_constraint_error
    assert len(results[1].ids) == 40
    engine.close()


@pytest.mark.timing
@pytest.mark.parametrize(
    ("spec", "num_steps"),
    [
        (_alternatives(200), 12),
        (_alternatives(60), 24),
        (_alternatives(200, "[a-z]{12}"), 14),
        (ConstraintSpec("grammar", 'start: e\ne: e e | "a"'), 110),
        (ConstraintSpec("grammar", 'start: e\ne[capture]: e e | "a"'), 70),
        (ConstraintSpec("regex", " ".join(f"word{i} other" for i in range(1500))), 12),
        (ConstraintSpec("json_schema", json.dumps({"const": WORD * 1500})), 12),
    ],
    ids=["alternatives", "fewer", "late", "ambiguous", "captures", "forced", "constant"],
)
def test_what_the_thread_of_the_steps_does(
    factory: ConstraintFactory, spec: ConstraintSpec, num_steps: int
) -> None:
    """Masks are filled by others. What is left is short at any time, by CPU time."""
    seconds: list[float] = []

    def timed(work: Any, *given: Any) -> Any:  # noqa: ANN401
        start = time.thread_time()
        done = work(*given)
        seconds.append(time.thread_time() - start)
        return done

    lease = factory.lease(spec).result()
    compiled, constraint = lease.compiled, lease.constraint
    draw = np.random.default_rng(0)
    allowed = lease.first_mask.allowed
    for _ in range(num_steps):
        forced = timed(constraint.forced_tokens)[:64]
        timed(constraint.accept_tokens, forced or [_drawn(draw, allowed)])
        (mask,) = factory.start_filling([(compiled, constraint)])
        assert mask.error is None
        if constraint.error is not None or constraint.is_terminated:
            break
        allowed = mask.allowed
        drafts = [_drawn(draw, allowed)] * 8
        timed(partial(constraint.validate_tokens, briefly=True), drafts)
    timed(constraint.captures)
    timed(constraint.reset)
    assert max(seconds) < STEP_SECONDS


@pytest.mark.timing
def test_what_is_put_off_is_accepted_by_another_thread(factory: ConstraintFactory) -> None:
    """Even where it must be accepted once more, for the library looked too far ahead."""
    lease = factory.lease(_alternatives(200, "[a-z]{2}")).result()
    constraint = lease.constraint
    assert isinstance(constraint, LlguidanceConstraint)
    draw = np.random.default_rng(0)
    allowed = lease.first_mask.allowed
    own = all_threads = 0.0
    for _ in range(10):
        constraint.accept_tokens(constraint.forced_tokens() or [_drawn(draw, allowed)])
        start, start_of_all = time.thread_time(), time.process_time()
        constraint.fill_known(factory.allocate_bitmask(1), 0)
        own += time.thread_time() - start
        all_threads += time.process_time() - start_of_all
        allowed = _mask(factory, lease.compiled, constraint)
    assert all_threads > 4 * STEP_SECONDS, "it was dear"
    assert own < all_threads / 4


@pytest.mark.timing
def test_what_has_grown_is_not_freed_by_who_drops_it(factory: ConstraintFactory) -> None:
    names = [f"A{i}" for i in range(120)]
    terminals = [f"A{i}: /[a-z]*{chr(97 + i % 26)}[a-z]{{{i % 12}}}[0-9]/" for i in range(120)]
    grammar = "\n".join([f"start: ({' | '.join(names)})+", *terminals])
    compiled = factory.lease(ConstraintSpec("grammar", grammar)).result().compiled
    constraint = factory.get_constraint(compiled)
    assert isinstance(constraint, LlguidanceConstraint)
    allowed = _mask(factory, compiled, constraint)
    constraint.accept_tokens([_drawn(np.random.default_rng(0), allowed)])
    _mask(factory, compiled, constraint)
    matcher = constraint.matcher
    start = time.thread_time()
    del constraint
    assert time.thread_time() - start < STEP_SECONDS / 10
    assert not matcher.is_error()
    factory.lease(ConstraintSpec("regex", "[ab]+d")).result()
    assert matcher.is_error(), "who makes the next one lets it go"


@pytest.mark.timing
def test_a_busy_machine_makes_nothing_dear() -> None:
    """Time that others had the core for does not count."""
    cost = Cost(Latency(), goes_back=True)
    for _ in range(3):
        begun = cost.begin()
        time.sleep(0.01)
        cost.end(begun)
        assert not cost.is_dear
    for _ in range(2):
        assert not cost.is_dear, "a single one is forgiven"
        begun = cost.begin()
        _compute(0.002)
        cost.end(begun)
    assert cost.is_dear


def test_it_says_the_same_at_once_or_later(factory: ConstraintFactory) -> None:
    """A constraint that puts off all that it accepts, beside one that nothing is dear to."""
    specs = (
        _alternatives(3),
        ConstraintSpec("regex", "(ab|cd){3}x"),
        ConstraintSpec("grammar", f'start: x "{WORD}" y\nx[capture]: /[ab]+/\ny: /[0-9]/'),
    )
    draw = np.random.default_rng(1)
    for spec in specs:
        lease = factory.lease(spec).result()
        twin = lease.constraint.fork()
        assert isinstance(twin, LlguidanceConstraint)
        for _ in range(60):
            twin._cost.calls.mark_slow()
            masks = [_mask(factory, lease.compiled, c) for c in (lease.constraint, twin)]
            assert np.array_equal(masks[0], masks[1])
            assert twin.is_terminated == lease.constraint.is_terminated
            if twin.is_terminated:
                break
            ids = lease.constraint.forced_tokens() or [_drawn(draw, masks[0])]
            twin._cost.calls.mark_slow()
            for id in ids:
                assert twin.accept_tokens([id])
            assert lease.constraint.accept_tokens(ids)
        assert twin.captures() == lease.constraint.captures()
        assert twin.error is None


def test_a_text_is_the_same_at_once_or_later(
    make_engine: MakeEngine, encode: Encode, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine()
    schema = {
        "type": "object",
        "properties": {"name": {"enum": ["Anna", "Ole"]}, "age": {"type": "integer"}},
        "required": ["name", "age"],
        "additionalProperties": False,
    }
    specs = [
        ConstraintSpec("json_schema", json.dumps(schema)),
        ConstraintSpec("regex", "[ab]{9}c"),
        ConstraintSpec("choice", json.dumps(["yes indeed", "no"])),
        ConstraintSpec("grammar", 'start: "a" | "b" b\nb: /[0-9]{3}/ "!"'),
    ]
    submissions = [
        submission(id, encode("Water boils at"), 40, constraint=spec, forced_tokens=in_runs)
        for id, (spec, in_runs) in enumerate((s, r) for s in specs for r in (True, False))
    ]
    at_once = run(engine, submissions)
    monkeypatch.setattr(Cost, "is_dear", property(lambda cost: True))
    later = run(engine, submissions)
    for id, one in at_once.items():
        other = later[id]
        assert (other.ids, other.text) == (one.ids, one.text)
        assert one.finish is not None
        assert other.finish is not None
        assert other.finish.reason == one.finish.reason == "eos_token"


def test_a_token_that_is_not_allowed_shows_later(factory: ConstraintFactory) -> None:
    lease = factory.lease(ConstraintSpec("regex", "[0-9]{3}")).result()
    assert isinstance(lease.constraint, LlguidanceConstraint)
    lease.constraint._cost.calls.mark_slow()
    assert lease.constraint.accept_tokens([0])
    assert lease.constraint.error is None
    _mask(factory, lease.compiled, lease.constraint)
    assert lease.constraint.error is not None


def test_what_is_put_off_is_taken_back(factory: ConstraintFactory) -> None:
    lease = factory.lease(ConstraintSpec("regex", "(ab){3}x")).result()
    constraint = lease.constraint
    assert isinstance(constraint, LlguidanceConstraint)
    forced = constraint.forced_tokens()
    for settled in (0, 1, len(forced)):
        constraint.reset()
        constraint.accept_tokens(forced[:settled])
        constraint._cost.calls.mark_slow()
        for id in forced[settled:]:
            constraint.accept_tokens([id])
        constraint.rollback(len(forced))
        constraint._cost.forget()  # which it did if it had settled any of them
        _mask(factory, lease.compiled, constraint)
        assert constraint.forced_tokens() == forced


def test_a_mask_that_fails_ends_its_sequence_with_an_error(
    make_engine: MakeEngine, encode: Encode
) -> None:
    """It allows the end, then, which the text must not be taken to have reached."""
    engine = make_engine(speculate=0)
    spec = ConstraintSpec("regex", "(a{1,990}){1,1000}")
    result = run(engine, [submission(0, encode("a"), 250, constraint=spec)])[0]
    assert result.error == "the constraint failed: lexer error: too many expressions constructed"


def test_new_grammars_are_not_filled_by_the_step(factory: ConstraintFactory) -> None:
    compiled = factory.lease(ConstraintSpec("regex", "[xy]*")).result().compiled
    for _ in range(TRIED_MASKS):
        assert not compiled.is_brief(LIMITS)
        compiled.count_mask(0.0, LIMITS)
    assert compiled.is_brief(LIMITS)
    compiled.count_mask(2 * LIMITS.slow_mask, LIMITS)
    compiled.count_mask(0.0, LIMITS)
    assert compiled.is_brief(LIMITS), "one may be the machine's fault"
    compiled.count_mask(1.0, LIMITS)
    num_quick = 0
    while not compiled.is_brief(LIMITS):
        compiled.count_mask(0.0, LIMITS)
        num_quick += 1
    assert num_quick > (TRIED_AGAIN - 1) * TRIED_MASKS, "some texts come to what is slow"


def test_one_slow_step_may_be_the_machines_fault() -> None:
    now = ManualTime()
    allowance = Allowance(manual_latency(now))
    for most_steps in (1, 2):
        begun = allowance.begin()
        now.advance(2 * LIMITS.allowed_excess)
        allowance.end(begun)
        assert allowance.is_overdrawn == (most_steps > 1)


def _mask(
    factory: ConstraintFactory, compiled: CompiledConstraint, constraint: Constraint
) -> np.ndarray:
    (mask,) = factory.start_filling([(compiled, constraint)])
    assert mask.error is None
    return mask.allowed


def _drawn(draw: np.random.Generator, allowed: np.ndarray) -> int:
    ids = np.flatnonzero(np.unpackbits(allowed.view(np.uint8), bitorder="little"))
    others = ids[ids != 2]  # the end is for when there is nothing else
    return int(draw.choice(others if len(others) else ids))


def _compute(seconds: float) -> None:
    start = time.thread_time()
    while time.thread_time() < start + seconds:
        pass
