"""A model whose logits are wider than its tokenizer, which has holes: only ids of tokens exist."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from tests.engine.conftest import Encode
from tests.engine.running import run, submission
from tokenloom_engine.config import EngineConfig
from tokenloom_engine.constraints.spec import ConstraintSpec
from tokenloom_engine.engine import Engine
from tokenloom_engine.messages import LogprobParams

SIZE, WIDTH = 49152, 50000
NUM_HOLES = 3
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "on": {"type": "boolean"}},
    "required": ["name", "on"],
    "additionalProperties": False,
}


def test_padding_is_never_drawn(tmp_path: Path, model_path: Path, encode: Encode) -> None:
    holes = _save_padded(tmp_path, model_path)
    engine = Engine(EngineConfig(model_id=str(tmp_path), dtype="float32", block_size=16))
    assert engine.model.vocab_size == WIDTH
    prompt = encode("Once upon a time")
    free: dict[str, Any] = {"temperature": 2.0, "greedy": False, "ignore_eos": True}
    constraint = ConstraintSpec("json_schema", json.dumps(SCHEMA))
    submits = [submission(seed, prompt, 40, seed=seed, **free) for seed in range(20)]
    submits += [
        submission(100 + seed, prompt, 60, seed=seed, constraint=constraint, **free)
        for seed in range(20)
    ]
    submits += [submission(200, prompt, 40, ignore_eos=True)]
    wanted = LogprobParams(tokens=True, top_n_tokens=5)
    submits += [
        submission(201, prompt, 4, logprobs=wanted, **free, seed=1),
        submission(202, prompt, 4, logprobs=wanted, **free, seed=1, typical_p=0.9),
        submission(203, prompt, 4, **free, seed=1, logit_bias={SIZE: 100.0, holes[0]: 100.0}),
    ]
    results = run(engine, submits)
    engine.close()
    for id, result in results.items():
        assert result.error is None and result.refusal is None
        shown = {top.id for token in result.tokens for top in token.top or []} | {*result.ids}
        assert max(shown) < SIZE and not shown & {*holes}
        if 100 <= id < 200:
            jsonschema.validate(json.loads(result.text), SCHEMA)
    assert max(top.logprob for token in results[201].tokens for top in token.top or []) > -20
    assert len({id for result in results.values() for id in result.ids}) > 100, "it varies"


def _save_padded(folder: Path, model_path: Path) -> list[int]:
    """Save a tiny random Llama that would draw nothing but padding and holes; returns the holes."""
    AutoTokenizer.from_pretrained(model_path).save_pretrained(folder)
    holes = _make_holes(folder / "tokenizer.json")
    torch.manual_seed(1)
    config = AutoConfig.for_model(
        "llama",
        vocab_size=WIDTH,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        bos_token_id=1,
        eos_token_id=2,
        tie_word_embeddings=False,
    )
    model = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
        config, dtype=torch.float32
    )
    with torch.no_grad():
        head = model.lm_head.weight
        head[SIZE:] = head[:1].abs().sum() * head[SIZE:].sign() * 10
        head[holes] = head[SIZE:][:NUM_HOLES].clone()
    model.save_pretrained(folder)
    return holes


def _make_holes(tokenizer_file: Path) -> list[int]:
    """Remove some tokens that no other token is made of; returns their ids."""
    contents = json.loads(tokenizer_file.read_text())
    vocab, merges = contents["model"]["vocab"], contents["model"]["merges"]
    parts = {part for merge in merges for part in merge}
    tokens = ["".join(merge) for merge in merges if "".join(merge) not in parts][100:][:NUM_HOLES]
    contents["model"]["merges"] = [merge for merge in merges if "".join(merge) not in tokens]
    holes = [vocab.pop(token) for token in tokens]
    tokenizer_file.write_text(json.dumps(contents))
    return holes
