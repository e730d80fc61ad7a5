"""Tokens drawn at the temperatures that grammars set, by the real model."""

from __future__ import annotations

from typing import Any

import pytest

from tests.engine.conftest import Encode
from tests.engine.running import LOGPROBS, Result, run, submission
from tokenloom_engine.constraints.spec import ConstraintSpec
from tokenloom_engine.engine import Engine
from tokenloom_engine.messages import LogprobParams, Submit

PROMPT = "Once upon a time there was a"
GREEDY_THEN_HOT = (
    'start: a "! " b\na[temperature=0]: /[a-z ]{12}/\nb[temperature=1.5]: /[a-z ]{12}/'
)
HOT_THEN_UNSET = 'start: a " and then " b\na[temperature=1.5]: /[a-z ]{8}/\nb: /[a-z ]{8}/'
UNSET = 'start: a "! " b\na: /[a-z ]{12}/\nb: /[a-z ]{12}/'


def test_0_is_greedy_and_others_are_drawn_by_the_seed(engine: Engine, encode: Encode) -> None:
    greedy = _run(engine, encode, UNSET)
    first, again, other = (_run(engine, encode, GREEDY_THEN_HOT, seed=s) for s in (1, 1, 2))
    assert first.ids == again.ids
    heads = {result.text.partition("!")[0] for result in (greedy, first, other)}
    tails = {result.text.partition("!")[2] for result in (greedy, first, other)}
    assert len(heads) == 1, "temperature 0"
    assert len(tails) == 3, "temperature 1.5"


def test_what_sets_none_has_the_requests(engine: Engine, encode: Encode) -> None:
    logprobs = LogprobParams(tokens=True, top_n_tokens=1, processed=True)
    results = [
        _run(engine, encode, HOT_THEN_UNSET, seed=seed, logprobs=logprobs) for seed in range(3)
    ]
    assert len({result.ids[0] for result in results}) > 1
    for result in results:
        hot = [token for token in result.tokens if token.temperature is not None]
        assert {token.temperature for token in hot} == {1.5}
        cold = [t for t in result.tokens[len(hot) :] if not t.forced]
        assert len("".join(token.text for token in hot)) >= 7
        assert len("".join(token.text for token in cold)) >= 7
        assert [t.id for t in cold] == [t.top[0].id for t in cold if t.top], "greedy"


def test_it_outranks_the_requests_own(engine: Engine, encode: Encode) -> None:
    """Of top_k 1, which stays, even a temperature of 1.5 can only draw the best."""
    greedy = _run(engine, encode, UNSET)
    sampled = {"greedy": False, "temperature": 3.0, "seed": 1}
    assert _run(engine, encode, UNSET, **sampled).text != greedy.text
    cooled = _run(engine, encode, GREEDY_THEN_HOT, **sampled)
    assert cooled.text.partition("!")[0] == greedy.text.partition("!")[0]
    hot = _run(engine, encode, GREEDY_THEN_HOT, greedy=True, seed=1)
    assert cooled.ids == hot.ids, "the same temperatures and the same seed"
    assert _run(engine, encode, GREEDY_THEN_HOT, **sampled, top_k=1).text == greedy.text


def test_the_same_alone_in_a_crowd_and_with_forced_tokens_off(
    engine: Engine, encode: Encode
) -> None:
    grammars = [GREEDY_THEN_HOT, HOT_THEN_UNSET, UNSET]
    submits = [
        _submission(encode, grammar, id=2 * i + forced, seed=i, forced_tokens=bool(forced))
        for i, grammar in enumerate(grammars)
        for forced in (0, 1)
    ]
    crowd = run(engine, submits, steps_between=1)
    for submit in submits:
        alone = run(engine, [submit])[submit.id]
        assert crowd[submit.id].ids == alone.ids
        assert crowd[submit.id].ids == crowd[submit.id ^ 1].ids, "forced or not"
        assert [t.temperature for t in crowd[submit.id].tokens] == [
            t.temperature for t in alone.tokens
        ]


def test_processed_logprobs_are_of_the_distribution_at_that_temperature(
    engine: Engine, encode: Encode
) -> None:
    logprobs = LogprobParams(tokens=True, top_n_tokens=2, processed=True)
    at_temperature = [
        _run(engine, encode, f"start: a\na[temperature={t}]: /[a-z ]{{9}}/", logprobs=logprobs)
        for t in ("0.5", "1.0", "2.0")
    ]
    gaps = [
        tokens[0].logprob - tokens[1].logprob
        for result in at_temperature
        if (tokens := result.tokens[0].top)
    ]
    assert gaps == pytest.approx([2 * gaps[1], gaps[1], gaps[1] / 2], rel=1e-3)


def test_a_pooled_constraint_starts_with_its_first_temperature(
    engine: Engine, encode: Encode
) -> None:
    grammar = (
        'start: a "\\n" b\na[temperature=0, max_tokens=4]: /.*/\nb[temperature=1.5]: /[a-z]{9}/'
    )
    first, again = (_run(engine, encode, grammar, seed=7) for _ in range(2))
    assert first.ids == again.ids
    assert {token.temperature for token in again.tokens} >= {0.0, 1.5}


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, {"name": "captain", "all": ["a", "b"]}),
        ({"stop": ("b;",)}, {"name": "captain", "all": ["a", "b"]}),
        ({"stop": ("a;",)}, {"name": "captain", "all": ["a"]}),
        ({"max_new_tokens": 4}, {"name": "captain"}),
    ],
)
@pytest.mark.parametrize("forced_tokens", [True, False])
def test_captures_are_those_of_the_text(
    engine: Engine,
    encode: Encode,
    settings: dict[str, Any],
    expected: dict[str, Any],
    forced_tokens: bool,
) -> None:
    grammar = (
        'start: "Name: " name "\\n" x ";" y ";"\nname[capture]: "captain"\n'
        'x[capture="__LIST_APPEND:all"]: "a"\ny[capture="__LIST_APPEND:all"]: "b"'
    )
    submit = _submission(encode, grammar, forced_tokens=forced_tokens, **settings)
    result = run(engine, [submit])[1]
    assert result.finish is not None
    assert result.finish.captures == expected


def _run(engine: Engine, encode: Encode, grammar: str, **settings: Any) -> Result:  # noqa: ANN401
    return run(engine, [_submission(encode, grammar, **settings)])[1]


def _submission(
    encode: Encode,
    grammar: str,
    id: int = 1,
    max_new_tokens: int = 40,
    logprobs: LogprobParams = LOGPROBS,
    **settings: Any,  # noqa: ANN401 - any of the sampling and stopping parameters
) -> Submit:
    constraint = ConstraintSpec("grammar", grammar)
    return submission(
        id, encode(PROMPT), max_new_tokens, logprobs=logprobs, constraint=constraint, **settings
    )
