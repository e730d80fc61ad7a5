"""Rotary embeddings whose factors depend on the length of a text: each text has its own."""

from __future__ import annotations

import copy
import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel
from transformers.models.phi3 import modeling_phi3

from tests.engine.running import run, submission
from tests.engine.test_batch_invariance import Logits, Recorder
from tokenloom_engine.batch import Row
from tokenloom_engine.config import EngineConfig
from tokenloom_engine.engine import Engine
from tokenloom_engine.errors import LoadError
from tokenloom_engine.rope import RangedRotary, context_length, scale_rope
from tokenloom_engine.scheduler import Scheduler

SIZES = {
    "vocab_size": 49152,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 2,
}
LIMIT, LONGEST = 64, 256
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0] * 8,
    "long_factor": [1.0 + 2 * i for i in range(8)],
    "original_max_position_embeddings": LIMIT,
}
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}
LENGTHS = {"short": 40, "long": 120, "crossing": 58, "at the limit": LIMIT, "beyond": LIMIT + 1}
NEW_TOKENS = 14
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "phi3": (
        "phi3",
        {
            "max_position_embeddings": 256,
            "original_max_position_embeddings": LIMIT,
            "rope_parameters": LONGROPE,
        },
    ),
    "phimoe": (
        "phimoe",
        {
            "max_position_embeddings": 256,
            "original_max_position_embeddings": LIMIT,
            "num_local_experts": 4,
            "rope_parameters": LONGROPE | {"short_mscale": 1.1, "long_mscale": 1.3},
        },
    ),
    "olmo2": ("olmo2", {"max_position_embeddings": 256, "rope_parameters": LONGROPE}),
    "gemma3_text": (
        "gemma3_text",
        {
            "max_position_embeddings": LIMIT,
            "sliding_window": 24,
            "query_pre_attn_scalar": 16,
            "layer_types": ["sliding_attention", "full_attention"],
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 1000.0},
                "full_attention": DYNAMIC,
            },
        },
    ),
    "llama-longrope": (
        "llama",
        {
            "max_position_embeddings": 256,
            "head_dim": 32,
            "rope_parameters": LONGROPE
            | {"short_factor": [1.0] * 16, "long_factor": [1.0 + i for i in range(16)]},
        },
    ),
    "llama-dynamic": (
        "llama",
        {"max_position_embeddings": LIMIT, "head_dim": 32, "rope_parameters": DYNAMIC},
    ),
}
"""The Llamas have heads that the CPU kernels compute as a whole."""


@pytest.mark.parametrize("name", MODELS)
def test_a_text_has_its_own_factors(name: str, tmp_path: Path, model_path: Path) -> None:
    """Whatever runs beside it, in any chunks, from the prefix cache and after a preemption."""
    reference = save(*MODELS[name], tmp_path, model_path)
    prompts = {i: prompt(i, length) for i, length in enumerate(LENGTHS.values())}
    expected = {i: generate(reference, ids) for i, ids in prompts.items()}
    engine = make_engine(tmp_path)
    submits = [submission(i, ids, NEW_TOKENS, ignore_eos=True) for i, ids in prompts.items()]
    for _ in range(2):  # the second time, prompts come from the prefix cache
        results = run(engine, submits, steps_between=1)
        assert {i: result.ids for i, result in results.items()} == expected
    for submit in submits:
        assert run(engine, [submit])[submit.id].ids == expected[submit.id], "alone"
    engine.close()
    if name == "phi3":  # it computes its cache again where a text outgrows the limit
        ids = torch.tensor([prompts[2]])
        with torch.inference_mode():
            own = reference.generate(  # type: ignore[operator]
                ids, max_new_tokens=NEW_TOKENS, do_sample=False, eos_token_id=None
            )
        assert own[0, ids.shape[1] :].tolist() == expected[2]


@pytest.mark.parametrize("name", ["llama-longrope", "llama-dynamic"])
def test_logits_are_bitwise_the_same_in_any_company(
    name: str, tmp_path: Path, model_path: Path
) -> None:
    """Where the CPU kernels compute the decoder, also around the limit."""
    save(*MODELS[name], tmp_path, model_path)
    prompts = {i: prompt(i, length) for i, length in enumerate(LENGTHS.values())}
    engine = Recorder(make_engine(tmp_path, dtype="bfloat16", prefix_caching=False, speculate=0))
    alone: Logits = {}
    for id, ids in prompts.items():
        alone |= engine.run({id: ids})
    crowd = engine.run(prompts)
    engine.engine.close()
    assert crowd.keys() == alone.keys()
    assert all(torch.equal(crowd[key], alone[key]) for key in alone)
    small = {"max_batch_prefill_tokens": 7, "max_batch_total_tokens": 320}
    tight = Recorder(make_engine(tmp_path, dtype="bfloat16", **small))
    preempt_often(tight.engine._scheduler)
    for _ in range(2):  # in small chunks, with drafts, from the prefix cache
        found = tight.run(prompts)
        keys = found.keys() & alone.keys()
        assert len(keys) >= len(prompts) and all(torch.equal(found[k], alone[k]) for k in keys)
    assert tight.num_preemptions > 0
    tight.engine.close()


def test_the_load_check_sees_a_text_with_the_factors_of_another(
    tmp_path: Path, model_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(*MODELS["phi3"], tmp_path, model_path)
    monkeypatch.setattr(RangedRotary, "long", RangedRotary.short)
    with pytest.raises(LoadError, match="packed logits differ"):
        make_engine(tmp_path)


def test_refuses_a_rotary_embedding_that_it_cannot_tell(
    tmp_path: Path, model_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the code that comes with older models has it, with attributes of its own."""
    save(*MODELS["phi3"], tmp_path, model_path)
    call = modeling_phi3.Phi3RotaryEmbedding.__init__

    def build(self: Any, config: Any) -> None:  # noqa: ANN401
        call(self, config)
        self.rope_type = "default"

    monkeypatch.setattr(modeling_phi3.Phi3RotaryEmbedding, "__init__", build)
    with pytest.raises(LoadError, match="rope_type 'longrope' depends on the length of a text"):
        make_engine(tmp_path)


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": LIMIT}


@pytest.mark.parametrize(
    ("architecture", "length", "parameters", "expected"),
    [
        ("llama", 64, {"rope_type": "default"}, 64),
        ("llama", 64, {"type": "linear", "factor": 4.0}, 256),
        ("llama", 64, {"rope_type": "dynamic", "factor": 4.0}, 256),
        ("llama", 64, {"rope_type": "yarn", "factor": 4.0}, 256),
        ("qwen2", 64, YARN, 256),
        ("qwen3", 80, YARN, 256),
        ("gpt_oss", 256, YARN, 256),
        (
            "llama",
            256,
            {"type": "linear", "factor": 4, "original_max_position_embeddings": 64},
            256,
        ),
        (
            "llama",
            64,
            {"type": "dynamic", "factor": 4, "original_max_position_embeddings": 64},
            256,
        ),
        ("phi3", 256, LONGROPE, 256),
        (
            "llama",
            1024,
            {
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 256,
            },
            1024,
        ),
        (
            "gemma3_text",
            1024,
            {
                "sliding_attention": {"rope_type": "default"},
                "full_attention": {"rope_type": "linear", "factor": 8.0},
            },
            1024,
        ),
        ("gpt2", 64, None, 64),
    ],
)
def test_scaling_lengthens_the_context(
    architecture: str, length: int, parameters: dict[str, Any] | None, expected: int
) -> None:
    settings = {} if parameters is None else {"rope_scaling": parameters}
    config = AutoConfig.for_model(
        architecture, **SIZES, max_position_embeddings=length, n_positions=length, **settings
    )
    assert context_length(config) == expected


@pytest.mark.parametrize(
    ("parameters", "settings"),
    [
        (YARN, {}),
        ({"rope_type": "linear", "factor": 4.0}, {}),
        (None, {"rope_factor": 4.0}),
        (None, {"rope_scaling": "dynamic", "rope_factor": 4.0}),
    ],
)
def test_serves_the_context_that_scaling_gives(
    parameters: dict[str, Any] | None,
    settings: dict[str, Any],
    tmp_path: Path,
    model_path: Path,
) -> None:
    """Of the file, or of the settings that take the place of the file's."""
    sizes: dict[str, Any] = {"max_position_embeddings": LIMIT, "head_dim": 32}
    scaled = parameters or {"rope_type": "linear", "factor": 4.0} | (
        {"rope_type": settings["rope_scaling"]} if "rope_scaling" in settings else {}
    )
    reference = save("llama", sizes | {"rope_parameters": scaled}, tmp_path / "own", model_path)
    save("llama", sizes | {"rope_parameters": parameters}, tmp_path / "served", model_path)
    engine = make_engine(tmp_path / "served", max_total_tokens=LONGEST, **settings)
    assert engine.model.max_position_embeddings == LONGEST
    prompts = {i: prompt(i, length) for i, length in enumerate((40, 200))}
    submits = [submission(i, ids, NEW_TOKENS, ignore_eos=True) for i, ids in prompts.items()]
    results = run(engine, submits)
    engine.close()
    for i, ids in prompts.items():
        assert results[i].ids == generate(reference, ids)


@pytest.mark.parametrize(
    ("architecture", "parameters", "settings", "reason"),
    [
        ("llama", YARN, {"rope_factor": 2.0}, "config.json has 'yarn'"),
        ("llama", None, {"rope_scaling": "dynamic"}, "without `rope_factor`"),
        ("gpt2", None, {"rope_factor": 2.0}, "'gpt2' has none"),
    ],
)
def test_refuses_to_scale_what_it_cannot(
    architecture: str,
    parameters: dict[str, Any] | None,
    settings: dict[str, Any],
    reason: str,
) -> None:
    rope = {} if parameters is None else {"rope_parameters": parameters}
    config = AutoConfig.for_model(architecture, max_position_embeddings=LIMIT, **rope)
    with pytest.raises(LoadError, match=reason):
        scale_rope(config, settings.get("rope_scaling"), settings.get("rope_factor"))


def preempt_often(scheduler: Scheduler) -> None:
    """Let the youngest sequence lose its blocks at every fifth step."""
    steps, schedule = itertools.count(1), scheduler.schedule

    def schedule_and_preempt() -> list[Row]:
        if next(steps) % 5 == 0 and scheduler.running:
            scheduler._preempt(scheduler.running[-1])
        return schedule()

    scheduler.schedule = schedule_and_preempt  # type: ignore[method-assign]


def save(
    architecture: str, settings: dict[str, Any], folder: Path, model_path: Path
) -> PreTrainedModel:
    """Write a random model with the bundled model's tokenizer; returns transformers' of it."""
    torch.manual_seed(1)
    config = AutoConfig.for_model(architecture, **{**SIZES, **settings})
    model: PreTrainedModel = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
        config, dtype=torch.float32
    )
    with torch.no_grad():  # as initialized, attention would hardly matter
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(4)
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(model_path).save_pretrained(folder)
    loaded: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    )
    return loaded


def make_engine(folder: Path, **settings: Any) -> Engine:  # noqa: ANN401 - any of EngineConfig's
    defaults: dict[str, Any] = {
        "model_id": str(folder),
        "dtype": "float32",
        "block_size": 16,
        "max_batch_total_tokens": 2048,
        "max_batch_prefill_tokens": 32,
    }
    return Engine(EngineConfig(**{**defaults, **settings}))


def prompt(seed: int, length: int) -> list[int]:
    return (torch.arange(1, length + 1) * (7919 + 2 * seed) % 49151 + 1).tolist()


@torch.inference_mode()
def generate(model: PreTrainedModel, ids: list[int]) -> list[int]:
    """Greedy, each token from one forward of transformers over the whole text.

    Of texts beyond the limit, dynamic scaling takes that for the longest one.
    """
    ids = list(ids)
    rotary = copy.deepcopy(model.model.rotary_emb)
    for _ in range(NEW_TOKENS):
        model.model.rotary_emb = copy.deepcopy(rotary)  # without what it has computed before
        positions = list(range(len(ids)))
        if len(ids) > LIMIT:  # a last token that no other one attends to
            positions.append(LONGEST - 1)
        inputs = torch.tensor([ids + ids[: len(positions) - len(ids)]])
        output = model(inputs, position_ids=torch.tensor([positions]), use_cache=False)
        ids.append(int(output.logits[0, len(ids) - 1].argmax()))
    model.model.rotary_emb = rotary
    return ids[-NEW_TOKENS:]
