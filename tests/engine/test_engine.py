"""The engine on the bundled model: what a sequence gets does not depend on its neighbours."""

from __future__ import annotations

import json
import math
from typing import Any

import jsonschema
import pytest
import torch

from tests.engine.conftest import Encode, MakeEngine
from tests.engine.running import Result, run, submission
from tokenloom_engine import model_runner
from tokenloom_engine.constraints.spec import ConstraintSpec
from tokenloom_engine.engine import Engine
from tokenloom_engine.messages import EngineStats, LogprobParams, Submit

STORY = "Once upon a time there was a small town"
SCHEMA = {
    "type": "object",
    "properties": {
        "full_name": {"type": "string", "maxLength": 20},
        "age_in_years": {"type": "integer", "minimum": 0, "maximum": 120},
        "favourite_colour": {"enum": ["red", "green", "blue"]},
    },
    "required": ["full_name", "age_in_years", "favourite_colour"],
    "additionalProperties": False,
}
JSON = ConstraintSpec("json_schema", json.dumps(SCHEMA))
LONG = ConstraintSpec("regex", "(yes|no)( and so on){50}")
NODE = {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}, "required": ["next"]}
ENDLESS = ConstraintSpec(
    "json_schema",
    json.dumps(
        {
            "type": "object",
            "properties": {"kind": {"enum": ["x", "y"]}, "node": {"$ref": "#/$defs/node"}},
            "required": ["kind", "node"],
            "$defs": {"node": NODE},
        }
    ),
)


def test_a_constrained_sequence_obeys_and_its_neighbours_do_not_notice(
    engine: Engine, encode: Encode
) -> None:
    alone = run(engine, [submission(0, encode(STORY), 24)])[0]
    results = run(
        engine,
        [
            submission(0, encode(STORY), 24),
            submission(1, encode("A person as JSON: "), 80, constraint=JSON),
            submission(2, encode("A number: "), 80, constraint=ConstraintSpec("regex", "[0-9]{5}")),
            submission(3, encode(STORY), 24, greedy=False, temperature=1.3, seed=5),
        ],
        steps_between=2,
    )
    assert results[0].ids == alone.ids
    jsonschema.validate(json.loads(results[1].text), SCHEMA)
    assert results[2].text.isdigit() and len(results[2].text) == 5
    finish = results[1].finish
    assert finish is not None and finish.reason == "eos_token"


def test_forced_tokens_save_forwards_and_change_nothing(engine: Engine, encode: Encode) -> None:
    outcomes: list[tuple[Result, int]] = []
    for forced_tokens in (True, False):
        forwards: list[EngineStats] = []
        submit = submission(
            0, encode("A person: "), 80, constraint=JSON, forced_tokens=forced_tokens
        )
        result = run(engine, [submit], after_step=forwards.append)[0]
        outcomes.append((result, sum(stats.batch_tokens > 0 for stats in forwards)))
    (forced, few), (single, many) = outcomes
    assert forced.ids == single.ids
    assert few < many - 10
    for one, other in zip(forced.tokens, single.tokens, strict=True):
        assert one.logprob is not None and other.logprob is not None
        assert abs(one.logprob - other.logprob) < 1e-3
        assert one.text == other.text
    assert sum(token.forced for token in forced.tokens) > 10
    assert not any(token.forced for token in single.tokens)
    assert forced.finish is not None
    assert forced.finish.forced_tokens == sum(token.forced for token in forced.tokens)


@pytest.mark.parametrize("max_new_tokens", [1, 2, 5, 9])
def test_the_token_limit_holds_inside_a_forced_run(
    engine: Engine, encode: Encode, max_new_tokens: int
) -> None:
    for logprobs in (LogprobParams(), LogprobParams(tokens=True)):
        submit = submission(
            0, encode("A person: "), max_new_tokens, constraint=JSON, logprobs=logprobs
        )
        result = run(engine, [submit])[0]
        assert len(result.ids) == max_new_tokens
        assert result.finish is not None and result.finish.reason == "length"
        assert result.text == "".join(token.text for token in result.tokens)


def test_a_long_forced_run_does_not_hold_up_the_neighbours(engine: Engine, encode: Encode) -> None:
    free = run(engine, [submission(0, encode(STORY), 8)])[0]
    steps: list[EngineStats] = []
    submits = [
        submission(0, encode(STORY), 8),
        submission(1, encode("Yes or no? "), 200, constraint=LONG),
    ]
    results = run(engine, submits, steps_between=1, after_step=steps.append)
    assert results[0].ids == free.ids
    assert results[1].text in ("yes" + " and so on" * 50, "no" + " and so on" * 50)
    assert [token.forced for token in results[1].tokens].count(False) == 1
    decoding = [
        stats.batch_tokens - stats.drafted_tokens for stats in steps if not stats.prefill_sequences
    ]
    assert 60 < max(decoding) <= 70
    assert sum(number > 0 for number in decoding) < 30, "it is not one token at a time"


def test_a_text_that_is_forced_without_end_ends_by_its_length(
    engine: Engine, encode: Encode
) -> None:
    submit = submission(0, encode("x or y? "), 160, constraint=ENDLESS)
    for _ in range(2):  # and the constraint can be used again
        result = run(engine, [submit])[0]
        assert result.finish is not None, result.error
        assert (result.finish.reason, len(result.ids)) == ("length", 160)
        assert result.text.startswith('{"kind":"')
        assert result.text.count('{"next":{"next":') > 10


@pytest.mark.parametrize("forced_tokens", [True, False])
@pytest.mark.parametrize(
    ("choice", "stop", "text"),
    [("one two three", "o thr", "one two thr"), ("one two three", "three", "one two three")],
)
def test_a_stop_string_holds_inside_a_forced_run(
    engine: Engine, encode: Encode, choice: str, stop: str, text: str, forced_tokens: bool
) -> None:
    for logprobs in (LogprobParams(), LogprobParams(tokens=True)):
        submit = submission(
            0,
            encode("Count: "),
            80,
            constraint=ConstraintSpec("choice", json.dumps([choice])),
            stop=(stop,),
            logprobs=logprobs,
            forced_tokens=forced_tokens,
        )
        result = run(engine, [submit])[0]
        assert result.text == text
        assert result.finish is not None and result.finish.reason == "stop_sequence"


def test_a_wholly_forced_text_needs_no_forward_without_logprobs(
    engine: Engine, encode: Encode
) -> None:
    spec = ConstraintSpec("choice", '["exactly this"]')
    seen: list[EngineStats] = []
    submit = submission(0, encode("Say: "), constraint=spec, logprobs=LogprobParams())
    result = run(engine, [submit], after_step=seen.append)[0]
    assert result.text == "exactly this"
    assert sum(stats.batch_tokens for stats in seen) == 0


def test_a_bad_constraint_fails_its_own_sequence(engine: Engine, encode: Encode) -> None:
    results = run(
        engine,
        [
            submission(0, encode(STORY)),
            submission(1, encode(STORY), constraint=ConstraintSpec("regex", "(")),
        ],
    )
    assert results[0].finish is not None
    assert results[1].refusal is not None and "grammar is not valid" in results[1].refusal


def test_a_library_that_breaks_fails_its_own_sequence(
    make_engine: MakeEngine, encode: Encode, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine()

    def broken(spec: ConstraintSpec) -> None:
        raise RuntimeError(f"no {spec.kind} today")

    monkeypatch.setattr(engine._constraints._backends["llguidance"], "create", broken)
    results = run(
        engine, [submission(0, encode(STORY), 4), submission(1, encode(STORY), constraint=JSON)]
    )
    assert results[0].finish is not None
    assert results[1].error == "the constraint failed: RuntimeError"
    assert not results[1].is_constraint_error


def test_preempted_sequences_say_the_same(make_engine: MakeEngine, encode: Encode) -> None:
    prompts = [encode(f"{STORY} number {i} where") for i in range(4)]
    roomy = make_engine()
    expected = [run(roomy, [submission(i, p, 30)])[i] for i, p in enumerate(prompts)]
    tight = make_engine(max_batch_total_tokens=112)
    preemptions: list[int] = []
    results = run(
        tight,
        [submission(i, p, 30) for i, p in enumerate(prompts)],
        after_step=lambda stats: preemptions.append(stats.preemptions),
    )
    assert sum(preemptions) > 0, "the cache was meant to be too small"
    for i, result in enumerate(expected):
        assert results[i].ids == result.ids
        assert results[i].text == result.text


def test_preemption_keeps_seeded_draws_and_constraints(
    make_engine: MakeEngine, encode: Encode
) -> None:
    def submits() -> list[Submit]:
        drawn: dict[str, Any] = {"greedy": False, "temperature": 1.0, "seed": 9}
        return [
            submission(0, encode(STORY), 36, **drawn),
            submission(1, encode("A person: "), 36, constraint=JSON, **drawn),
            submission(2, encode(STORY + " by the sea"), 36, **drawn),
        ]

    roomy, tight = make_engine(), make_engine(max_batch_total_tokens=80)
    preemptions: list[int] = []
    expected = {s.id: run(roomy, [s])[s.id] for s in submits()}
    results = run(tight, submits(), after_step=lambda s: preemptions.append(s.preemptions))
    assert sum(preemptions) > 0
    assert {i: r.ids for i, r in results.items()} == {i: r.ids for i, r in expected.items()}


def test_a_cached_prefix_changes_nothing(engine: Engine, encode: Encode) -> None:
    base = encode(" ".join([STORY] * 8))
    for length in (1, 15, 16, 17, 48):
        submit = submission(0, base[:length], 8, logprobs=LogprobParams(tokens=True))
        cold, warm = (run(engine, [submit])[0] for _ in range(2))
        assert warm.ids == cold.ids
        assert warm.cached_tokens == (length - 1) // 16 * 16
        for one, other in zip(cold.tokens, warm.tokens, strict=True):
            assert one.logprob is not None and other.logprob is not None
            assert abs(one.logprob - other.logprob) < 1e-3


def test_prompt_logprobs_come_also_with_a_cached_prefix(engine: Engine, encode: Encode) -> None:
    ids = encode(" ".join([STORY] * 5))
    run(engine, [submission(0, ids)])
    result = run(engine, [submission(0, ids, logprobs=LogprobParams(prompt=True))])[0]
    assert result.prompt is not None
    assert [token.id for token in result.prompt] == ids
    assert result.prompt[0].logprob is None
    assert all(token.logprob is not None and token.logprob <= 0 for token in result.prompt[1:])


def test_greedy_logprobs_are_the_best_and_sum_to_less_than_one(
    engine: Engine, encode: Encode
) -> None:
    params = LogprobParams(tokens=True, top_n_tokens=5)
    result = run(engine, [submission(0, encode(STORY), 8, logprobs=params)])[0]
    for token in result.tokens:
        assert token.top is not None and len(token.top) == 5
        assert token.top[0].id == token.id
        assert token.top[0].logprob == token.logprob
        assert sum(math.exp(top.logprob) for top in token.top) <= 1 + 1e-6


def test_logprobs_are_the_models_own_unless_processed_ones_are_asked_for(
    engine: Engine, encode: Encode
) -> None:
    spec = ConstraintSpec("regex", "[xyz]{4}")
    raw = run(engine, [submission(0, encode(STORY), constraint=spec)])[0]
    processed = run(
        engine,
        [
            submission(
                0,
                encode(STORY),
                constraint=spec,
                logprobs=LogprobParams(tokens=True, processed=True, top_n_tokens=2),
            )
        ],
    )[0]
    assert processed.ids == raw.ids
    pairs = list(zip(raw.tokens, processed.tokens, strict=True))
    assert all(r.logprob is not None and p.logprob is not None for r, p in pairs)
    assert all((r.logprob or 0) <= (p.logprob or 0) for r, p in pairs)
    assert (pairs[0][0].logprob or 0) < (pairs[0][1].logprob or 0) - 1


def test_top_tokens_say_what_the_constraint_masked(engine: Engine, encode: Encode) -> None:
    params = LogprobParams(tokens=True, top_n_tokens=4)
    results = run(
        engine,
        [
            submission(1, encode("A person: "), 40, constraint=JSON, logprobs=params),
            submission(2, encode(STORY), 6, logprobs=params),
            submission(
                3, encode(STORY), constraint=ConstraintSpec("regex", "[xyz]{4}"), logprobs=params
            ),
        ],
    )
    assert not any(top.masked for token in results[2].tokens for top in token.top or ())
    for token in results[1].tokens:
        for top in token.top or ():
            assert not (top.masked and top.id == token.id)
            assert not token.forced or top.masked == (top.id != token.id)
    for token in results[3].tokens:
        for top in token.top or ():
            assert top.masked or set(top.text) <= set("xyz")
    assert any(top.masked for token in results[3].tokens for top in token.top or ())


def test_eos_ends_unless_ignored(engine: Engine, encode: Encode) -> None:
    prompt = encode("<|im_start|>user\nSay hi<|im_end|>\n<|im_start|>assistant\n")
    ended = run(engine, [submission(0, prompt, 60)])[0]
    assert ended.finish is not None and ended.finish.reason == "eos_token"
    assert ended.tokens[-1].special and ended.tokens[-1].text == "<|im_end|>"
    assert "<|im_end|>" not in ended.text
    going_on = run(engine, [submission(0, prompt, 60, ignore_eos=True)])[0]
    assert going_on.finish is not None and going_on.finish.reason == "length"
    assert going_on.ids[: len(ended.ids)] == ended.ids
    assert len(going_on.ids) == 60


def test_an_aborted_sequence_is_gone_at_the_next_step(engine: Engine, encode: Encode) -> None:
    for i in range(3):
        engine.submit(submission(i, encode(STORY), 200, constraint=JSON if i == 2 else None))
    for _ in range(3):
        engine.step()
    for i in range(3):
        engine.abort(i)
    engine.abort(99)
    outputs = engine.step()
    assert outputs.outputs == []
    assert outputs.stats.running == outputs.stats.waiting == 0
    assert outputs.stats.used_tokens == 0
    assert not engine.has_work


def test_a_long_prompt_does_not_hold_up_a_running_sequence(
    make_engine: MakeEngine, encode: Encode
) -> None:
    engine = make_engine(max_batch_prefill_tokens=64)
    engine.submit(submission(0, encode(STORY), 30, ignore_eos=True))
    engine.step()
    engine.submit(submission(1, encode(STORY) * 40, 4))
    sizes = []
    for _ in range(5):
        step = engine.step()
        sizes.append(step.stats.batch_tokens - step.stats.drafted_tokens)
        assert 0 in [output.id for output in step.outputs], "a token in every step"
    assert max(sizes) <= 64 + 1


def test_a_request_that_never_fits_is_refused(make_engine: MakeEngine, encode: Encode) -> None:
    engine = make_engine(max_batch_total_tokens=64)
    result = run(engine, [submission(0, encode(STORY), 60)])[0]
    assert result.error is not None and "KV cache" in result.error


@pytest.mark.parametrize("cores", [1, 2])
def test_another_engine_in_the_process_has_as_many_threads(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch, cores: int
) -> None:
    monkeypatch.setattr(model_runner, "TORCH_THREADS", 2)
    monkeypatch.setattr(model_runner, "usable_cores", lambda: cores)
    before = torch.get_num_threads()
    for _ in range(2):
        kernels = make_engine(dtype="bfloat16")._runner.kernels
        if kernels is None:
            pytest.skip("the CPU kernels cannot be built")
        assert kernels.threads == cores
        assert torch.get_num_threads() == 1
    torch.set_num_threads(before)


def test_bfloat16_says_the_same_alone_and_in_a_crowd(
    make_engine: MakeEngine, encode: Encode
) -> None:
    """The dtype that is the default where the hardware has it."""
    engine = make_engine(dtype="bfloat16")
    drawn: dict[str, Any] = {"greedy": False, "temperature": 1.0, "seed": 3}
    submits = [submission(i, encode(STORY)[: 4 + i], 20, **drawn) for i in range(6)]
    alone = {submit.id: run(engine, [submit])[submit.id].ids for submit in submits}
    crowd = run(engine, submits, steps_between=1)
    assert {id: result.ids for id, result in crowd.items()} == alone
