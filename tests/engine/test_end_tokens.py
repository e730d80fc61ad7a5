"""Tokens that a request names as ends of its text."""

from __future__ import annotations

from tests.engine.conftest import Encode
from tests.engine.running import run, submission
from tokenloom_engine.constraints.spec import ConstraintSpec
from tokenloom_engine.engine import Engine

PROMPT = "The capital of France is"


def test_a_named_token_ends_the_text(engine: Engine, encode: Encode) -> None:
    prompt = encode(PROMPT)
    ids = run(engine, [submission(0, prompt, 8)])[0].ids
    end = ids[4]
    number = ids.index(end) + 1
    results = run(
        engine,
        [
            submission(1, prompt, 8, stop_token_ids=(end,)),
            submission(2, prompt, 8, stop_token_ids=(end,), ignore_eos=True),
            submission(3, prompt, 8),
            submission(4, prompt, 8, stop_token_ids=(end,), min_new_tokens=8),
        ],
    )
    for id in (1, 2):
        assert results[id].ids == ids[:number]
        finish = results[id].finish
        assert finish is not None
        assert finish.reason == "eos_token"
    assert results[3].ids == ids, "the neighbour has ends of its own"
    assert end not in results[4].ids
    assert len(results[4].ids) == 8


def test_a_named_token_ends_a_constrained_text(engine: Engine, encode: Encode) -> None:
    text = " one two three four"
    ids = encode(text)
    for forced_tokens in (True, False):
        result = run(
            engine,
            [
                submission(
                    0,
                    encode(PROMPT),
                    20,
                    constraint=ConstraintSpec("regex", text),
                    stop_token_ids=(ids[2],),
                    forced_tokens=forced_tokens,
                )
            ],
        )[0]
        assert result.ids == ids[:3]
