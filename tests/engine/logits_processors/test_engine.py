"""Each sequence has its own processors, and one that fails ends its own row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.engine.conftest import Encode, MakeEngine
from tests.engine.processors import SKIP, Skips
from tests.engine.running import run, submission
from tokenloom_engine.config import EngineConfig
from tokenloom_engine.constraints.spec import ConstraintSpec
from tokenloom_engine.engine import Engine
from tokenloom_engine.logs import add_request_id
from tokenloom_engine.messages import LogitsProcessorSpec, Submit

STORY = "Once upon a time there was a small town"
JSON = ConstraintSpec(
    "json_schema",
    '{"type": "object", "properties": {"full_name": {"type": "string", "maxLength": 12}, '
    '"age_in_years": {"type": "integer", "maximum": 99}}, '
    '"required": ["full_name", "age_in_years"], "additionalProperties": false}',
)


@pytest.fixture(scope="module")
def engine(model_path: Path, installed: None) -> Iterator[Engine]:
    config = EngineConfig(
        model_id=str(model_path),
        dtype="float32",
        max_batch_total_tokens=4096,
        block_size=16,
        speculate=4,  # to no effect: processors may remember
    )
    engine = Engine(config)
    yield engine
    engine.close()
    assert Skips.lent == [], "all came back"


def test_a_class_of_transformers_does_what_it_does_there(
    engine: Engine, encode: Encode, model_path: Path
) -> None:
    model: Any = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32)
    ids = encode("one two one two one two one")
    expected = model.generate(
        torch.tensor([ids]), max_new_tokens=20, do_sample=False, no_repeat_ngram_size=2
    )[0, len(ids) :].tolist()
    spec = LogitsProcessorSpec("no_repeat", {"ngram_size": 2})
    results = run(
        engine,
        [submission(0, ids, 20, logits_processors=(spec,)), submission(1, ids, 20)],
        steps_between=1,
    )
    assert results[0].ids == expected
    assert results[1].ids != expected


def test_each_sequence_has_its_own_whatever_else_runs(
    engine: Engine, make_engine: MakeEngine, encode: Encode
) -> None:
    def submits() -> list[Submit]:
        drawn: dict[str, Any] = {"greedy": False, "seed": 4}
        return [
            submission(0, encode(STORY), 12, logits_processors=(SKIP,)),
            submission(1, encode(STORY), 12, logits_processors=(SKIP, SKIP), **drawn),
            submission(2, encode(STORY), 12, logits_processors=(SKIP,), constraint=JSON),
            submission(3, encode(STORY), 12),
        ]

    alone = {s.id: run(engine, [s])[s.id].ids for s in submits()}
    assert alone[0] != alone[3]
    crowd = run(engine, submits(), steps_between=1)
    assert {id: result.ids for id, result in crowd.items()} == alone
    tight = make_engine(max_batch_total_tokens=48)
    preemptions: list[int] = []
    results = run(tight, submits(), after_step=lambda s: preemptions.append(s.preemptions))
    assert sum(preemptions) > 0
    assert {id: result.ids for id, result in results.items()} == alone


def test_forced_tokens_skip_processors(engine: Engine, encode: Encode) -> None:
    def submit(*, forced_tokens: bool) -> Submit:
        return submission(
            0,
            encode("A person: "),
            50,
            constraint=JSON,
            logits_processors=(SKIP,),
            forced_tokens=forced_tokens,
        )

    together = run(engine, [submit(forced_tokens=True)])[0]
    single = run(engine, [submit(forced_tokens=False)])[0]
    assert together.ids == single.ids
    assert sum(token.forced for token in together.tokens) > 5


def test_processors_come_back_on_every_way_out(engine: Engine, encode: Encode) -> None:
    Skips.lent.clear()
    ids = encode(STORY)
    fault = LogitsProcessorSpec("fault", {"kind": "nan", "at_call": 3})
    invalid = LogitsProcessorSpec("skip", {"more": 1})
    results = run(
        engine,
        [
            submission(0, ids, 4, logits_processors=(SKIP,)),
            submission(1, ids, 9, logits_processors=(SKIP, fault)),
            submission(2, ids, 4, logits_processors=(SKIP, invalid)),
            submission(3, ids, logits_processors=(SKIP,), constraint=ConstraintSpec("regex", "(")),
            submission(4, ids, 5000, logits_processors=(SKIP,)),
            submission(5, ids, 4),
        ],
    )
    assert results[0].finish is not None and results[5].finish is not None
    assert results[1].error == "the logits processor fault failed: it returned NaN or +inf"
    assert len(results[1].tokens) == 2
    assert results[2].refusal == "`logits_processors`: skip: it takes nothing"
    assert results[3].refusal is not None and results[4].error is not None
    assert Skips.lent == []
    for id in (0, 1):  # waiting, and running
        engine.submit(submission(id, ids, 9, logits_processors=(SKIP,)))
        for _ in range(2 * id):
            engine.step()
        assert len(Skips.lent) == 1
        engine.abort(id)
        assert Skips.lent == []


def test_a_processor_that_is_not_installed(engine: Engine, encode: Encode) -> None:
    spec = LogitsProcessorSpec("absent")
    result = run(engine, [submission(0, encode(STORY), logits_processors=(spec,))])[0]
    assert result.refusal == "`logits_processors`: absent: it is not installed"


def test_log_lines_name_the_request(
    engine: Engine, encode: Encode, caplog: pytest.LogCaptureFixture
) -> None:
    ids = encode(STORY)
    while_drawing = LogitsProcessorSpec("fault", {"kind": "raise"})
    at_start = LogitsProcessorSpec("fault", {"kind": "validate"})
    caplog.handler.addFilter(add_request_id)
    run(
        engine,
        [
            submission(0, ids, 4, logits_processors=(while_drawing,), request_id="drawing"),
            submission(1, ids, 4, logits_processors=(at_start,), request_id="starting"),
            submission(2, ids, 5000, request_id="long"),
            submission(3, ids, 2, request_id="good"),
        ],
    )
    caplog.handler.removeFilter(add_request_id)
    told: dict[str, int] = Counter(vars(record)["request_id"] for record in caplog.records)
    assert told == {"drawing": 2, "starting": 2, "long": 1}
