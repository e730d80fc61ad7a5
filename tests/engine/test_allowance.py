"""A constraint that holds the thread of all sequences is refused, or ends its own."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from tests.engine.conftest import Encode, MakeEngine
from tests.engine.running import run, submission
from tokenloom_engine.constraints.allowance import EXCESS_SECONDS, STEP_SECONDS, Allowance
from tokenloom_engine.constraints.base import InvalidConstraintError
from tokenloom_engine.constraints.factory import ConstraintFactory
from tokenloom_engine.constraints.spec import ConstraintSpec

TOO_DEAR = "it takes more than 5 ms for a token"


def _alternatives(count: int) -> ConstraintSpec:
    """Arrays of themselves, in so many ways: each token is looked at in all of them."""
    element = {"$ref": "#/$defs/e"}
    branches = [{"type": "array", "items": element, "minItems": 1 + i % 3} for i in range(count)]
    schema = {
        "$defs": {"e": {"anyOf": branches}},
        "type": "object",
        "properties": {"a": element},
        "required": ["a"],
    }
    return ConstraintSpec("json_schema", json.dumps(schema))


@pytest.fixture(scope="module")
def factory(tokenizer_file: Path) -> ConstraintFactory:
    return ConstraintFactory.for_tokenizer(tokenizer_file.read_text(), 49152, [2])


def test_it_shows_in_a_rehearsal(factory: ConstraintFactory) -> None:
    dear = _alternatives(200)
    with pytest.raises(InvalidConstraintError) as raised:
        factory.validate(dear)
    assert str(raised.value) == TOO_DEAR
    start = time.thread_time()
    assert factory.find_fault(dear, TOO_DEAR) is None
    assert time.thread_time() - start < 0.1, "parts are not tried: the whole is to blame"
    assert factory.validate(_alternatives(5)) == []


def test_it_ends_its_own_sequence(make_engine: MakeEngine, encode: Encode) -> None:
    """Where nobody rehearsed it, or it becomes dear later."""
    engine = make_engine()
    prompt = encode("Once upon a time")
    results = run(
        engine,
        [
            submission(0, prompt, 40, constraint=_alternatives(200)),
            submission(1, prompt, 40, constraint=ConstraintSpec("regex", "[ab]{30}")),
            submission(2, prompt, 40, ignore_eos=True),
        ],
    )
    assert results[0].error == f"the constraint failed: {TOO_DEAR}"
    assert len(results[1].text) == 30
    assert len(results[2].ids) == 40


def test_one_slow_step_may_be_the_machines_fault() -> None:
    allowance = Allowance()
    long_ago = time.perf_counter() - 60
    allowance.end(long_ago)
    assert not allowance.is_overdrawn, "the clock runs on while others have the core"
    begun = allowance.begin()
    time.sleep(2 * EXCESS_SECONDS)
    allowance.end(begun)
    assert not allowance.is_overdrawn, "from now on, only its own CPU time counts"
    steps = 0
    while not allowance.is_overdrawn:
        begun = allowance.begin()
        _compute(2 * STEP_SECONDS)
        allowance.end(begun)
        steps += 1
    assert steps > 1


def _compute(seconds: float) -> None:
    start = time.thread_time()
    while time.thread_time() < start + seconds:
        pass
