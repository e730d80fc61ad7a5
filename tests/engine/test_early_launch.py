"""The next forward before the last words: the same is said, and nothing stays of what is not."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.engine.conftest import Encode, MakeEngine
from tests.engine.running import Result, run, submission
from tokenloom_engine.config import EngineConfig
from tokenloom_engine.constraints.spec import ConstraintSpec
from tokenloom_engine.engine import Engine
from tokenloom_engine.forwards import Flight
from tokenloom_engine.generated_text import GeneratedText
from tokenloom_engine.messages import EngineStats, LogprobParams, StepOutputs, Submit

STORY = "Once upon a time there was a small town"
COUNT = "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12,"
PERSON = ConstraintSpec(
    "json_schema",
    json.dumps(
        {
            "type": "object",
            "properties": {
                "full_name": {"type": "string", "maxLength": 12},
                "favourite_colour": {"enum": ["red", "green", "blue"]},
            },
            "required": ["full_name", "favourite_colour"],
            "additionalProperties": False,
        }
    ),
)
ORDERS = ConstraintSpec("choice", json.dumps(["one two three four", "two three four five"]))
NAMED = ConstraintSpec("grammar", 'start: (word " ")+ "."\nword[capture]: /[a-c]{1,3}/')
SAMPLED: dict[str, Any] = {"greedy": False, "temperature": 0.9}
QUIET = LogprobParams()
ALL = LogprobParams(tokens=True, prompt=True, top_n_tokens=2)


def submits(encode: Encode) -> list[Submit]:
    """One of each kind of sequence that may end in its own way."""
    story, count, person = encode(STORY), encode(COUNT), encode("A person as JSON: ")
    given: list[dict[str, Any]] = [
        {"prompt_ids": story},
        {"prompt_ids": story, "logprobs": ALL},
        {"prompt_ids": story, "max_new_tokens": 1},
        *({"prompt_ids": story, "seed": seed, **SAMPLED} for seed in (1, 2, 3)),
        {"prompt_ids": count, "ignore_eos": True},
        {"prompt_ids": count, "stop": ("17, 1",)},
        {"prompt_ids": count, "stop": ("15", "1"), "min_new_tokens": 6, "logprobs": QUIET},
        {"prompt_ids": count, "stop_token_ids": tuple(encode("7"))},
        {"prompt_ids": person, "constraint": PERSON},
        {"prompt_ids": person, "constraint": PERSON, "logprobs": QUIET, "seed": 4, **SAMPLED},
        {"prompt_ids": person, "constraint": PERSON, "forced_tokens": False},
        {"prompt_ids": person, "constraint": PERSON, "max_new_tokens": 11},
        {"prompt_ids": person, "constraint": PERSON, "stop": ("urite_", "bl"), "logprobs": QUIET},
        {"prompt_ids": count, "constraint": ORDERS, "stop": ("o thr",)},
        {"prompt_ids": count, "constraint": ORDERS, "stop": ("ree f",), "logprobs": QUIET},
        {"prompt_ids": count, "constraint": NAMED, "seed": 5, **SAMPLED},
        {
            "prompt_ids": count,
            "constraint": NAMED,
            "stop": (" a", " b", " c"),
            "seed": 6,
            **SAMPLED,
        },
        {"prompt_ids": count, "constraint": ConstraintSpec("text", prefix=" 13,"), "stop": ("16",)},
        {
            "prompt_ids": count,
            "constraint": ConstraintSpec("choice", '["said"]'),
            "logprobs": QUIET,
        },
        {"prompt_ids": count, "constraint": ConstraintSpec("regex", "(")},
    ]
    return [submission(id, **{"max_new_tokens": 24, **each}) for id, each in enumerate(given)]


@pytest.fixture(scope="module")
def engines(model_path: Path) -> Iterator[tuple[Engine, Engine]]:
    """The usual one, and one that launches early, with logits that depend on nothing else."""
    usual, early = (
        Engine(
            EngineConfig(
                model_id=str(model_path),
                dtype="bfloat16",
                max_batch_total_tokens=8192,
                block_size=16,
                launch_early=launch_early,
            )
        )
        for launch_early in (None, True)
    )
    if not early._runner.model.is_batch_invariant:
        pytest.skip("the CPU kernels cannot be built")
    yield usual, early
    usual.close()
    early.close()


@pytest.fixture
def early(engines: tuple[Engine, Engine]) -> Iterator[Engine]:
    """The one that launches early; in the end it must be as if nothing had been."""
    engine = engines[1]
    yield engine
    blocks = engine._scheduler.blocks
    assert not engine.has_work and not engine._sequences
    assert blocks.num_free == blocks.num_blocks


@pytest.fixture(scope="module")
def expected(engines: tuple[Engine, Engine], encode: Encode) -> dict[int, tuple[Any, ...]]:
    """What each says in the usual order."""
    return {id: said(result) for id, result in run(engines[0], submits(encode)).items()}


def said(result: Result) -> tuple[Any, ...]:
    """All of it but what depends on the others: drafts, and the prefix cache."""
    finish = result.finish
    if finish is None:
        return result.error, result.refusal
    text, forced = finish.generated_text, finish.forced_tokens
    return result.tokens, result.prompt, finish.reason, text, forced, finish.captures


def test_what_is_tried_is_of_every_kind(expected: dict[int, tuple[Any, ...]]) -> None:
    reasons = [each[2] for each in expected.values() if len(each) > 2]
    assert min(reasons.count(reason) for reason in ("length", "eos_token", "stop_sequence")) > 2
    assert reasons.count("stop_sequence") > 5
    assert sum(bool(each[5]) for each in expected.values() if len(each) > 2) == 2, "captures"


def test_a_crowd_says_the_same_cold_and_from_the_prefix_cache(
    early: Engine, encode: Encode, expected: dict[int, tuple[Any, ...]]
) -> None:
    drafted = 0

    def note(stats: EngineStats) -> None:
        nonlocal drafted
        drafted += stats.drafted_tokens
        assert stats.step_seconds >= stats.forward_seconds

    for steps_between in (0, 1):
        results = run(early, submits(encode), steps_between=steps_between, after_step=note)
        assert {id: said(result) for id, result in results.items()} == expected
    assert drafted, "guesses were to be among them"


def test_preempted_sequences_say_the_same(
    engines: tuple[Engine, Engine], make_engine: MakeEngine, encode: Encode
) -> None:
    """And without drafts."""
    story, person = encode(STORY), encode("A person: ")
    given = [
        submission(0, story, 36, logprobs=ALL),
        submission(1, person, 36, constraint=PERSON, seed=9, **SAMPLED),
        submission(2, story, 36, seed=9, **SAMPLED),
        submission(3, story, 36, stop=(" The",)),
        submission(4, person, 36, constraint=PERSON, stop=("urite",)),
    ]
    expected = run(engines[0], given)
    settings: dict[str, Any] = {"max_batch_total_tokens": 80, "speculate": 0}
    tight = make_engine(dtype="bfloat16", launch_early=True, **settings)
    preemptions = 0

    def note(stats: EngineStats) -> None:
        nonlocal preemptions
        preemptions += stats.preemptions

    results = run(tight, given, after_step=note)
    assert preemptions
    assert {id: said(r) for id, r in results.items()} == {id: said(r) for id, r in expected.items()}
    assert tight._scheduler.blocks.num_free == tight._scheduler.blocks.num_blocks


def test_the_next_forward_begins_before_the_last_words(
    early: Engine, encode: Encode, monkeypatch: pytest.MonkeyPatch
) -> None:
    happened: list[str] = []
    _before(monkeypatch, early._runner, "get_logits", lambda _: happened.append("forward"))
    _before(monkeypatch, GeneratedText, "push", lambda *_, **__: happened.append("words"))
    early.submit(submission(0, encode(STORY), 3, ignore_eos=True))
    outputs = [early.step() for _ in range(3)]
    assert happened == ["forward", "forward", "words", "forward", "words", "words"]
    assert [len(step.outputs) for step in outputs] == [1, 1, 1], "each step brings its token"


def test_what_a_stop_string_left_in_flight_leaves_no_trace(
    engines: tuple[Engine, Engine], early: Engine, encode: Encode
) -> None:
    usual, _ = engines
    ids = encode(" ".join([STORY] * 2)) + encode(COUNT)
    given = submission(0, ids, 40, stop=("20",))
    steps: list[StepOutputs] = []
    early.submit(given)
    while not steps or not steps[-1].outputs or steps[-1].outputs[0].finish is None:
        steps.append(early.step())
    flight = _in_flight(early)
    assert [row.sequence.submit.id for row in flight.rows] == [0], "the forward was in vain"
    assert steps[-1].stats.running == steps[-1].stats.used_tokens == 0, "its blocks are free"
    # Another one begins in the same blocks, and a third goes on where the first one stopped.
    text = [token.id for step in steps for output in step.outputs for token in output.tokens]
    others = [
        submission(0, encode(COUNT) * 3, 20),
        submission(1, [*ids, *text, *encode(" 21, 22,")], 12),
    ]
    found = run(early, others)
    assert {id: said(result) for id, result in found.items()} == {
        s.id: said(run(usual, [s])[s.id]) for s in others
    }


def test_who_leaves_during_a_forward_gets_nothing_of_it(
    engines: tuple[Engine, Engine], early: Engine, encode: Encode
) -> None:
    usual, _ = engines
    stays = submission(0, encode(STORY), 20)
    early.submit(stays)
    early.submit(submission(1, encode(COUNT), 200))
    early.submit(submission(2, encode("A person: "), 200, constraint=PERSON))
    tokens = []
    for _ in range(4):
        outputs = {output.id: output for output in early.step().outputs}
        tokens += outputs[0].tokens
    assert {row.sequence.submit.id for row in _in_flight(early).rows} == {0, 1, 2}
    early.abort(1)
    early.abort(2)
    again = submission(1, encode(STORY * 2), 12)  # under the same number
    found = run(early, [again])
    assert said(found[1]) == said(run(usual, [again])[1])
    assert tokens + found[0].tokens == run(usual, [stays])[0].tokens


def test_a_forward_that_fails_ends_those_in_it_and_what_came_before_is_said(
    engines: tuple[Engine, Engine], early: Engine, encode: Encode, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual, _ = engines
    given = [submission(0, encode(STORY), 9), submission(1, encode(STORY), 2)]
    whole = {s.id: run(usual, [s])[s.id] for s in given}
    forwards = 0

    def break_third(*_: object) -> None:
        nonlocal forwards
        forwards += 1
        if forwards == 3:
            raise RuntimeError("no")

    _before(monkeypatch, early._runner, "get_logits", break_third)
    steps: list[EngineStats] = []
    found = run(early, given, after_step=steps.append)
    assert found[0].error == "RuntimeError: no"
    assert found[0].tokens == whole[0].tokens[:2], "what came before is said"
    assert said(found[1]) == said(whole[1]), "it had all that it wanted"
    assert [stats.failed for stats in steps] == [False, False, True]
    assert said(run(early, given[:1])[0]) == said(whole[0]), "the next one does not notice"


def test_a_text_that_fails_is_alone(
    early: Engine, encode: Encode, monkeypatch: pytest.MonkeyPatch
) -> None:
    seven = encode(" 7")[-1]

    def break_seven(_: GeneratedText, id: int, **__: object) -> None:
        if id == seven:
            raise RuntimeError("no")

    given = [submission(0, encode("4, 5, 6,"), 9), submission(1, encode(STORY), 9)]
    expected = run(early, given)
    assert seven in expected[0].ids and seven not in expected[1].ids
    _before(monkeypatch, GeneratedText, "push", break_seven)
    found = run(early, given)
    assert found[0].error == "RuntimeError: no"
    assert said(found[1]) == said(expected[1])


def _in_flight(engine: Engine) -> Flight:
    assert engine._flight is not None and engine.has_work
    return engine._flight


def _before(
    monkeypatch: pytest.MonkeyPatch, owner: object, name: str, before: Callable[..., object]
) -> None:
    """Have `before` called with what the method of that name is called with."""
    method = getattr(owner, name)

    def called(*arguments: Any, **settings: Any) -> Any:  # noqa: ANN401 - the method's own
        before(*arguments, **settings)
        return method(*arguments, **settings)

    monkeypatch.setattr(owner, name, called)
