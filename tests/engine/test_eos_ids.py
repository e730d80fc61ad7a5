"""All tokens that end a model's text, wherever its files name them, end a constrained text too."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from tests.engine.conftest import Encode
from tests.engine.running import Result, run, submission
from tokenloom_engine.config import EngineConfig
from tokenloom_engine.constraints.spec import ConstraintSpec
from tokenloom_engine.engine import Engine

TOKENIZERS_OWN = 2
"""<|im_end|>, by tokenizer_config.json."""
NO_EOS = 4
"""A special token that ends nothing."""
LETTERS = ConstraintSpec("regex", "a*")


@pytest.fixture(scope="module")
def folder(model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random model with the bundled tokenizer."""
    folder = tmp_path_factory.mktemp("tiny")
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=49152,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=256,
        eos_token_id=None,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    AutoTokenizer.from_pretrained(model_path).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module", params=[{"eos_token_id": [0, 2, 5]}, {"eos_token_id": 7}, {}])
def loaded(folder: Path, request: pytest.FixtureRequest) -> Iterator[tuple[Engine, list[int]]]:
    """An engine over it with some generation_config.json, and the ids that end its texts."""
    given: dict[str, Any] = request.param
    (folder / "generation_config.json").write_text(json.dumps(given))
    own = given.get("eos_token_id", [])
    engine = Engine(
        EngineConfig(
            model_id=str(folder), dtype="float32", max_batch_total_tokens=1024, block_size=16
        )
    )
    yield engine, sorted({TOKENIZERS_OWN, *(own if isinstance(own, list) else [own])})
    engine.close()


def push(engine: Engine, ids: list[int], prompt: list[int], **settings: Any) -> list[Result]:  # noqa: ANN401
    """What comes when each of these ids in turn is by far the likeliest."""
    submits = [
        submission(n, prompt, 8, logit_bias={id: 100.0}, **settings) for n, id in enumerate(ids)
    ]
    results = run(engine, submits)
    return [results[n] for n in range(len(ids))]


@pytest.mark.parametrize("constraint", [None, LETTERS])
def test_each_of_them_ends_a_text(
    loaded: tuple[Engine, list[int]], encode: Encode, constraint: ConstraintSpec | None
) -> None:
    engine, eos_ids = loaded
    assert engine.model.eos_token_ids == eos_ids
    for id, result in zip(
        eos_ids, push(engine, eos_ids, encode("a"), constraint=constraint), strict=True
    ):
        assert result.finish is not None
        assert (result.finish.reason, result.ids) == ("eos_token", [id])
        assert (result.text, result.tokens[0].special) == ("", True)


def test_none_is_allowed_before_the_constraint_is_met(
    loaded: tuple[Engine, list[int]], encode: Encode
) -> None:
    engine, eos_ids = loaded
    constraint = ConstraintSpec("regex", "aba?")
    for id, result in zip(
        eos_ids, push(engine, eos_ids, encode("a"), constraint=constraint), strict=True
    ):
        assert (result.text, result.ids[-1]) == ("ab", id)


def test_other_special_tokens_end_nothing(loaded: tuple[Engine, list[int]], encode: Encode) -> None:
    engine, _ = loaded
    for constraint in (None, LETTERS):
        (result,) = push(engine, [NO_EOS], encode("a"), constraint=constraint)
        assert result.finish is not None
        if constraint is None:
            assert (result.finish.reason, set(result.ids)) == ("length", {NO_EOS})
        else:
            assert NO_EOS not in result.ids
            assert set(result.text) <= {"a"}
