"""Name patterns that match declared properties alone, and other dead ends."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from tests.engine.conftest import Encode, MakeEngine
from tests.engine.running import run, submission
from tokenloom_engine.constraints.closed_names import with_closed_names
from tokenloom_engine.constraints.factory import ConstraintFactory
from tokenloom_engine.constraints.spec import ConstraintSpec

SCORE = {"type": "integer", "multipleOf": 5, "minimum": 0, "maximum": 100}
LOW = {"type": "integer", "maximum": 90}
DEAD_END = 'start: ("x" | "y") A\nA: /a/ & /b/'


def _schema(pattern: str) -> str:
    schema = {
        "type": "object",
        "properties": {"score": SCORE},
        "patternProperties": {pattern: LOW},
        "required": ["score"],
        "additionalProperties": False,
    }
    return json.dumps({"properties": {"inner": schema}, "required": ["inner"]})


@pytest.mark.parametrize("pattern", ["^score$", "^(score)$", "^(?:score|score)$"])
def test_no_property_is_begun_for_which_no_name_is_left(tokenizer_file: Path, pattern: str) -> None:
    factory = ConstraintFactory.for_tokenizer(tokenizer_file.read_text(), 49152, [2])
    tokenizer = Tokenizer.from_file(str(tokenizer_file))
    spec = ConstraintSpec("json_schema", _schema(pattern))
    assert factory.validate(spec) == []

    def is_allowed(text: str) -> bool:
        constraint = factory.get_constraint(factory.compile(spec).result())
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        return constraint.validate_tokens(ids) == len(ids)

    assert is_allowed('{"inner":{"score":85}}')
    assert not is_allowed('{"inner":{"score":95')
    assert not is_allowed('{"inner":{"score":85,')


@pytest.mark.parametrize("pattern", ["^sco", "^other$", "^(score|other)$", "score", "^s.*$"])
def test_patterns_that_match_other_names_stay(pattern: str) -> None:
    assert with_closed_names(_schema(pattern)) == _schema(pattern)


def test_a_dead_end_is_the_constraints_own_error(make_engine: MakeEngine, encode: Encode) -> None:
    constraint = ConstraintSpec("grammar", DEAD_END)
    prompt = encode("One letter: ")
    results = run(
        make_engine(),
        [submission(0, prompt, constraint=constraint), submission(1, prompt, ignore_eos=True)],
    )
    assert results[0].error == "the constraint failed: no text matches it"
    assert results[0].is_constraint_error
    assert len(results[1].ids) == 16, "its neighbour goes on"
