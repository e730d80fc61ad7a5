"""A model spread over two processes on the CPU: the tokens are those of one process."""

from __future__ import annotations

import gc
import os
import re
from collections.abc import Iterator
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from transformers import AutoTokenizer, LlamaForCausalLM

from tests.engine.conftest import MakeEngine
from tests.engine.running import run, submission
from tests.integration.random_model import save_random_model
from tokenloom_engine.batch import Batch, Row
from tokenloom_engine.config import EngineConfig
from tokenloom_engine.constraints.spec import ConstraintSpec
from tokenloom_engine.engine import Engine
from tokenloom_engine.errors import LoadError
from tokenloom_engine.model_runner import ModelRunner
from tokenloom_engine.sequence import Sequence
from tokenloom_engine.shard_rows import decode_rows, encode_rows
from tokenloom_engine.shards import check_divisible, check_gpus
from tokenloom_engine.vocabulary import Vocabulary

MODEL_HEADS = "9 query heads and 3 key-value heads"
lost = Event()


@pytest.fixture(scope="module")
def random_model(model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("random")
    save_random_model(folder, AutoTokenizer.from_pretrained(model_path))
    return folder


@pytest.fixture(scope="module")
def sharded(random_model: Path) -> Iterator[Engine]:
    threads = torch.get_num_threads()
    os.environ["SOME_TOKEN"] = "secret"
    engine = Engine(
        EngineConfig(
            model_id=str(random_model),
            dtype="float32",
            num_shard=2,
            max_batch_total_tokens=2048,
            max_batch_prefill_tokens=48,
            speculate=3,
            block_size=16,
        ),
        lost.set,
    )
    del os.environ["SOME_TOKEN"]
    yield engine
    engine.close()
    assert followers() == []
    del engine
    gc.collect()
    torch.set_num_threads(threads)


def followers() -> list[psutil.Process]:
    return [
        child
        for child in psutil.Process().children()
        if "tokenloom_engine.follower" in child.cmdline()
    ]


def prompt(number: int, length: int) -> list[int]:
    return [(7919 * (number + i) + 13) % 40_000 + 100 for i in range(length)]


def test_a_crowd_gets_transformers_tokens(sharded: Engine, random_model: Path) -> None:
    prompts = [prompt(i, length) for i, length in enumerate((5, 130, 17, 64, 1))]
    results = run(
        sharded,
        [submission(i, ids, 20, ignore_eos=True) for i, ids in enumerate(prompts)],
        steps_between=2,
    )
    model: Any = LlamaForCausalLM.from_pretrained(random_model, dtype=torch.float32)
    for i, ids in enumerate(prompts):
        expected = model.generate(
            torch.tensor([ids]),
            attention_mask=torch.ones(1, len(ids)),
            max_new_tokens=20,
            min_new_tokens=20,
            do_sample=False,
            pad_token_id=0,
        )
        assert results[i].ids == expected[0, len(ids) :].tolist()


def test_what_is_cached_is_in_both_shards(sharded: Engine) -> None:
    ids = prompt(70, 60)
    first = run(sharded, [submission(0, ids, 12, ignore_eos=True)])[0]
    again = run(sharded, [submission(1, ids, 12, ignore_eos=True)])[1]
    assert first.cached_tokens == 0 and again.cached_tokens == 48
    assert again.ids == first.ids


def test_constraints_seeds_and_drafts(
    sharded: Engine, make_engine: MakeEngine, random_model: Path
) -> None:
    spec = ConstraintSpec(kind="regex", value="[a-f]{4}-[0-9]{6}")
    crowd = [
        submission(1, prompt(3, 20), 40, constraint=spec, greedy=False, seed=1),
        submission(2, prompt(4, 20), 10, ignore_eos=True, greedy=False, seed=5),
        submission(3, prompt(5, 20), 40, constraint=spec),
        submission(4, prompt(6, 20), 30, ignore_eos=True, logit_bias={777: 100.0}),
    ]
    accepted: list[int] = []
    alone = make_engine(model_id=str(random_model))
    results = run(sharded, crowd, after_step=lambda stats: accepted.append(stats.accepted_tokens))
    expected = run(alone, crowd)
    assert sum(accepted) > 0
    for id, result in results.items():
        assert result.ids == expected[id].ids
    for id in (1, 3):
        assert re.fullmatch("[a-f]{4}-[0-9]{6}", results[id].text)


def test_the_model_is_spread(sharded: Engine) -> None:
    assert sharded.model.num_shards == 2
    (follower,) = followers()
    assert "SOME_TOKEN" not in follower.environ()
    per_token = sharded.model.kv_bytes_per_token
    assert per_token == 2 * 1 * (32 + 32) * 4, "two layers, one of two heads"


def test_a_shard_that_ends_is_noticed(sharded: Engine) -> None:
    """The last test of this engine."""
    assert not lost.is_set()
    followers()[0].kill()
    assert lost.wait(10)
    result = run(sharded, [submission(90, [5, 6, 7])])[90]
    assert result.error is not None and result.finish is None


def test_rows_arrive_as_they_are(vocabulary: Vocabulary) -> None:
    rows = []
    for start, count, num_scored, table, drafts in (
        (0, 20, 1, [4, 9], ()),
        (33, 1, 34, [3, 1, 7], ()),
        (5, 4, 6, [2], (11, 12)),
        (40, 8, 99, [8, 6, 5], ()),
    ):
        end = start + count - len(drafts)
        sequence = Sequence(submission(1, list(range(100, 100 + end))), vocabulary)
        sequence.num_scored, sequence.block_table = num_scored, [*table, 10]
        rows.append(Row(sequence, start, count, count > 1, drafts))
    sent = Batch.pack(rows, 16, torch.device("cpu"))
    decoded = decode_rows(encode_rows(rows, 16), vocabulary)
    received = Batch.pack(decoded, 16, torch.device("cpu"))
    for name in ("input_ids", "position_ids", "slots", "logit_positions"):
        np.testing.assert_array_equal(getattr(received, name), getattr(sent, name))
    assert received.num_logits == sent.num_logits
    assert [(r.start, r.end, r.is_prefill) for r in received.rows] == [
        (r.start, r.end, r.is_prefill) for r in rows
    ]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_shard": 2}, f"does not divide the model's {MODEL_HEADS}: it can be 1, 3"),
        ({"num_shard": 3, "quantize": "int8"}, "`quantize` int8 needs a whole model"),
    ],
)
def test_what_cannot_be_spread(model_path: Path, settings: dict[str, object], message: str) -> None:
    config = EngineConfig(model_id=str(model_path), device="cpu", **settings)  # type: ignore[arg-type]
    with pytest.raises(LoadError) as raised:
        Engine(config)
    assert message in str(raised.value)


def test_sharded_without_gpus(model_path: Path) -> None:
    config = EngineConfig(model_id=str(model_path), device="cpu", num_shard=None)
    with pytest.raises(LoadError, match="give their number as `num_shard`"):
        Engine(config)


def test_a_model_without_a_plan(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    with pytest.raises(LoadError, match="no plan to spread 'gpt2' models: leave it at 1"):
        check_divisible(tmp_path, 2, trust_remote_code=False)


@pytest.mark.parametrize(
    ("settings", "num_shard", "num_gpus", "message"),
    [
        ({}, 1, 1, None),
        ({}, 2, 1, "`num_shard` is 2, and torch sees 1 GPUs: give no more"),
        ({"replicas": 2}, 2, 4, None),
        ({"replicas": 2}, 1, 1, "`replicas` is 2 and `num_shard` is 1: they need 2 GPUs"),
        ({"replicas": 2}, 2, 3, "`replicas` is 2 and `num_shard` is 2: they need 4 GPUs"),
        ({"replicas": 2, "replica_index": 1}, 2, 2, None),
        ({"replicas": 2, "replica_index": 1}, 2, 1, "they need 4 GPUs, and torch sees 1"),
    ],
)
def test_each_replica_needs_gpus_of_its_own(
    settings: dict[str, Any], num_shard: int, num_gpus: int, message: str | None
) -> None:
    config = EngineConfig(model_id="m", **settings)
    if message is None:
        check_gpus(config, num_shard, num_gpus)
    else:
        with pytest.raises(LoadError, match=re.escape(message)):
            check_gpus(config, num_shard, num_gpus)


def test_replicas_share_cores_and_memory_of_a_cpu(
    random_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    num_threads = torch.get_num_threads()
    monkeypatch.setattr("tokenloom_engine.model_runner.TORCH_THREADS", 8)
    monkeypatch.setattr("tokenloom_engine.model_runner.usable_cores", lambda: 8)
    monkeypatch.setattr("tokenloom_engine.model_runner.memory_for_kv_cache", lambda _: 8 << 20)
    try:
        sizes = {}
        for replicas in (1, 4):
            config = EngineConfig(
                model_id=str(random_model),
                device="cpu",
                replicas=replicas,
                disable_custom_kernels=True,
            )
            runner = ModelRunner(config)
            sizes[replicas] = (torch.get_num_threads(), runner.num_blocks)
    finally:
        torch.set_num_threads(num_threads)
    assert sizes[1] == (8, 4 * sizes[4][1])
    assert sizes[4][0] == 2
