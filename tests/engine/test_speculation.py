"""With drafts or without: the same tokens, with the same of everything that is said of them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.engine.clocks import ManualTime, manual_latency
from tests.engine.conftest import Encode, MakeEngine
from tests.engine.running import Result, run, submission
from tokenloom_engine.config import EngineConfig
from tokenloom_engine.constraints.base import Bitmask, Constraint
from tokenloom_engine.constraints.config import ConstraintConfig
from tokenloom_engine.constraints.spec import ConstraintSpec
from tokenloom_engine.draft_budget import DraftBudget
from tokenloom_engine.drafts import Drafter, Guess
from tokenloom_engine.engine import Engine
from tokenloom_engine.messages import EngineStats, LogprobParams, Submit

TEXT = "The quick brown fox jumps over the lazy dog near the old bank of the river. " * 2
COPY = f"<|im_start|>user\nRepeat this text: {TEXT}<|im_end|>\n<|im_start|>assistant\n"
COUNT = "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12,"
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 9},
        "age": {"type": "integer", "minimum": 0, "maximum": 99},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
PEOPLE = ConstraintSpec(
    "json_schema", json.dumps({"type": "array", "items": PERSON, "minItems": 3, "maxItems": 4})
)
DRUMS = ConstraintSpec("regex", "((bang|clap|boom)[ ,]){4,12}")
NAMED = ConstraintSpec("grammar", 'start: (word " ")+ "."\nword[capture]: /[a-c]{1,3}/')
HOT = ConstraintSpec("grammar", 'start: a a "."\na[temperature=1.5]: /[ab]{4}/')
PREFIX = ConstraintSpec("text", prefix=" The quick")
SAMPLED: dict[str, Any] = {"greedy": False, "temperature": 0.8, "seed": 7}
ALL = LogprobParams(tokens=True, top_n_tokens=3)
TIME = ManualTime()
PROCESSED = LogprobParams(tokens=True, top_n_tokens=2, processed=True)


def submits(encode: Encode) -> dict[str, Submit]:
    """One of each kind."""
    copy, count, people = encode(COPY), encode(COUNT), encode("People as JSON: ")
    given: dict[str, dict[str, Any]] = {
        "greedy": {"prompt_ids": copy},
        "sampled": {"prompt_ids": copy, **SAMPLED, "top_p": 0.95},
        "counted": {"prompt_ids": count, "logprobs": ALL, "ignore_eos": True},
        "repetition": {"prompt_ids": copy, "repetition_penalty": 1.05},
        "penalties": {"prompt_ids": copy, "frequency_penalty": 0.2, "presence_penalty": 0.3},
        "biased": {"prompt_ids": copy, "logit_bias": {encode(" fox")[0]: -4.0}, **SAMPLED},
        "watermark": {"prompt_ids": copy, "watermark": True, **SAMPLED},
        "typical": {"prompt_ids": copy, "typical_p": 0.9, **SAMPLED, "logprobs": PROCESSED},
        "minimum": {"prompt_ids": copy, "min_new_tokens": 38, "logprobs": LogprobParams()},
        "stopped": {"prompt_ids": copy, "stop": ("over the la", "zzz")},
        "no_eos": {"prompt_ids": copy, "stop_token_ids": (encode(" river")[0],)},
        "people": {"prompt_ids": people, "constraint": PEOPLE, "logprobs": ALL},
        "drawn_people": {"prompt_ids": people, "constraint": PEOPLE, **SAMPLED},
        "unforced": {"prompt_ids": people, "constraint": PEOPLE, "forced_tokens": False},
        "processed": {"prompt_ids": people, "constraint": PEOPLE, "logprobs": PROCESSED},
        "drums": {"prompt_ids": copy, "constraint": DRUMS, **SAMPLED, "repetition_penalty": 1.2},
        "named": {"prompt_ids": copy, "constraint": NAMED, **SAMPLED},
        "hot": {"prompt_ids": copy, "constraint": HOT},
        "healed": {"prompt_ids": copy, "constraint": PREFIX},
    }
    return {
        name: submission(id, max_new_tokens=40, **settings)
        for id, (name, settings) in enumerate(given.items())
    }


@pytest.fixture(autouse=True)
def _eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draft wherever anything can be guessed, whether or not it pays."""
    monkeypatch.setattr(DraftBudget, "least_odds", lambda *_: 0.0)


@pytest.fixture(scope="module")
def engine(model_path: Path) -> Iterator[Engine]:
    """In bfloat16, where the kernels' logits do not depend on what else is in the forward."""
    engine = Engine(
        EngineConfig(
            model_id=str(model_path), dtype="bfloat16", max_batch_total_tokens=8192, speculate=5
        ),
        latency=manual_latency(TIME),
    )
    if not engine._runner.model.is_batch_invariant:
        pytest.skip("the CPU kernels cannot be built")
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def expected(engine: Engine, encode: Encode) -> dict[int, Result]:
    """What each says without drafts."""
    return run_plain(engine, submits(encode).values())


class Steps:
    """Counts over an engine's steps."""

    def __init__(self) -> None:
        self.drafted = self.accepted = self.preemptions = 0

    def __call__(self, stats: EngineStats) -> None:
        self.drafted += stats.drafted_tokens
        self.accepted += stats.accepted_tokens
        self.preemptions += stats.preemptions


def run_plain(engine: Engine, given: Iterable[Submit]) -> dict[int, Result]:
    """Run without drafts."""
    steps = Steps()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Drafter, "guess", lambda *_: Guess())
        results = run(engine, given, after_step=steps)
    assert steps.drafted == 0
    return results


def said(result: Result) -> tuple[Any, ...]:
    """All of it but how many drafts were right."""
    finish = result.finish
    assert finish is not None, result.error or result.refusal
    text, forced = finish.generated_text, finish.forced_tokens
    return result.tokens, finish.reason, text, forced, finish.captures


def test_each_says_the_same_in_fewer_steps(
    engine: Engine, encode: Encode, expected: dict[int, Result]
) -> None:
    accepted: dict[str, int] = {}
    for name, submit in submits(encode).items():
        steps = Steps()
        found = run(engine, [submit], after_step=steps)[submit.id]
        assert said(found) == said(expected[submit.id]), name
        assert found.finish is not None and found.finish.accepted_tokens == steps.accepted
        assert steps.accepted <= steps.drafted
        accepted[name] = steps.accepted
    assert accepted.pop("hot") == 0, "a thermometer cannot go back"
    accepted.pop("named")  # captures: none where going back would not be a matter of microseconds
    assert all(accepted.values())
    assert accepted["greedy"] > 10 and accepted["unforced"] > 10
    assert accepted["healed"] > 10, "once its prefix is there"


def test_all_together_say_the_same(
    engine: Engine, encode: Encode, expected: dict[int, Result]
) -> None:
    steps = Steps()
    found = run(engine, submits(encode).values(), steps_between=2, after_step=steps)
    assert steps.accepted > 0
    for id, result in found.items():
        assert said(result) == said(expected[id])


def test_chunks_preemptions_and_the_prefix_cache(
    engine: Engine, make_engine: MakeEngine, encode: Encode, expected: dict[int, Result]
) -> None:
    names = ("greedy", "sampled", "counted", "people", "drawn_people", "unforced")
    given = [submits(encode)[name] for name in names]
    tight = make_engine(
        dtype="bfloat16", speculate=5, max_batch_total_tokens=128, max_batch_prefill_tokens=16
    )
    steps = Steps()
    for _ in range(2):
        found = run(tight, given, after_step=steps)
        for id, result in found.items():
            assert said(result) == said(expected[id])
    assert steps.accepted > 0 and steps.preemptions > 0
    longer = submission(0, [*given[0].prompt_ids, *expected[0].ids], 8, logprobs=ALL)
    assert said(run(tight, [longer])[0]) == said(run_plain(engine, [longer])[0]), "cached blocks"


def test_the_limit_of_tokens_holds_among_drafts(
    engine: Engine, encode: Encode, expected: dict[int, Result]
) -> None:
    limits = range(1, 12)
    found = run(engine, [submission(most, encode(COPY), most) for most in limits])
    for most in limits:
        assert found[most].ids == expected[0].ids[:most]
        finish = found[most].finish
        assert finish is not None and finish.reason == "length"


def test_float32_says_the_same(make_engine: MakeEngine, encode: Encode) -> None:
    engine = make_engine(speculate=3)
    given = [submits(encode)[name] for name in ("greedy", "repetition", "drawn_people")]
    plain = run_plain(engine, given)
    steps = Steps()
    found = run(engine, given, after_step=steps)
    assert steps.accepted > 0
    for id, result in found.items():
        assert result.ids == plain[id].ids


@pytest.mark.parametrize("is_invariant", [True, False])
def test_drafts_are_made_unasked_where_logits_do_not_depend_on_them(
    make_engine: MakeEngine, encode: Encode, is_invariant: bool
) -> None:
    engine = make_engine(disable_custom_kernels=not is_invariant)
    if engine._runner.model.is_batch_invariant != is_invariant:
        pytest.skip("the CPU kernels cannot be built")
    steps = Steps()
    run(engine, [submission(0, encode(COUNT), 12)], after_step=steps)
    assert (steps.accepted > 0) == is_invariant


def test_xgrammar_goes_ahead_and_back(make_engine: MakeEngine, encode: Encode) -> None:
    pytest.importorskip("xgrammar")
    person = {
        **PERSON,
        "properties": {"name": {"enum": ["Ann", "Bob"]}, "age": {"type": "integer"}},
    }
    people = {"type": "array", "items": person, "minItems": 3, "maxItems": 4}
    spec = ConstraintSpec("json_schema", json.dumps(people))
    named = [submits(encode)[name] for name in ("people", "drawn_people", "unforced")]
    given = [msgspec.structs.replace(submit, constraint=spec) for submit in named]
    backends = ConstraintConfig(backends={"json_schema": "xgrammar"})
    engine = make_engine(dtype="bfloat16", constraints=backends, speculate=5)
    plain = run_plain(engine, given)
    steps = Steps()
    found = run(engine, given, after_step=steps)
    assert steps.accepted > 0
    for id, result in found.items():
        assert said(result) == said(plain[id])


@pytest.mark.parametrize("fault", ["raises", "errs", "is slow"])
def test_what_goes_wrong_on_the_way_of_a_guess_does_not_matter(
    engine: Engine,
    encode: Encode,
    expected: dict[int, Result],
    monkeypatch: pytest.MonkeyPatch,
    fault: str,
) -> None:
    submit = submits(encode)["unforced"]
    assert submit.constraint is not None
    backend = engine._constraints._backends["llguidance"]
    fill = backend.fill_bitmasks
    num_faults = 0

    def tampered(rows: list[tuple[Constraint, int]], bitmask: Bitmask) -> None:
        nonlocal num_faults
        fill(rows, bitmask)
        if rows[0][1] < 2:  # that of the present state, or after the first draft
            return
        num_faults += 1
        if fault == "raises":
            raise RuntimeError("no more of this")
        if fault == "errs":
            assert not rows[0][0].accept_tokens([engine.vocabulary.size - 1])
        else:
            TIME.advance(1.0)

    monkeypatch.setattr(backend, "fill_bitmasks", tampered)
    compiled = engine._constraints.compile(submit.constraint).result()
    steps = Steps()
    was_slow: set[bool] = set()

    def after_step(stats: EngineStats) -> None:
        steps(stats)
        was_slow.add(compiled.look_aheads.is_slow)

    found = run(engine, [submit], after_step=after_step)[submit.id]
    assert num_faults > 0 and steps.accepted > 0
    assert (True in was_slow) == (fault == "is slow")
    assert said(found) == said(expected[submit.id])
