"""Tiny random models of many architectures: packed and paged, they say what transformers says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from tests.engine.conftest import Encode
from tests.engine.running import run, submission
from tokenloom_engine.config import EngineConfig
from tokenloom_engine.engine import Engine
from tokenloom_engine.errors import LoadError

SIZES = {
    "vocab_size": 49152,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 2,
}
GROUPED = {"num_key_value_heads": 2, "head_dim": 16}
WINDOW = {"sliding_window": 24}
GPT = {"n_embd": 64, "n_layer": 4, "n_head": 4, "n_positions": 256}
SERVED: dict[str, dict[str, Any]] = {
    "llama": GROUPED,
    "qwen2": GROUPED,
    "qwen3": GROUPED,
    "mistral": GROUPED | WINDOW,
    "gemma2": GROUPED | WINDOW | {"query_pre_attn_scalar": 16, "attn_logit_softcapping": 5.0},
    "gemma3_text": GROUPED | WINDOW | {"query_pre_attn_scalar": 16},
    "phi3": GROUPED,
    "gpt2": GPT,
    "gpt_neox": {},
    "olmo2": GROUPED,
    "granite": GROUPED,
    "mixtral": GROUPED | {"num_local_experts": 4},
    "qwen3_moe": GROUPED
    | {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48},
    "stablelm": GROUPED,
    "gpt_oss": GROUPED | WINDOW | {"num_local_experts": 4},
}
WIDE = {"num_key_value_heads": 2, "head_dim": 32}
FUSED: dict[str, dict[str, Any]] = {
    "llama": WIDE | {"attention_bias": True},
    "llama-scaled": WIDE
    | {
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 10000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
        }
    },
    "llama-divided": WIDE  # as a GGUF file's rope_freqs.weight has it
    | {
        "rope_parameters": {
            "rope_type": "longrope",
            "rope_theta": 10000.0,
            "short_factor": [1.0 + i for i in range(16)],
            "long_factor": [1.0 + i for i in range(16)],
            "original_max_position_embeddings": 64,
            "attention_factor": 1.0,
        }
    },
    "mistral": WIDE | WINDOW,
    "qwen2": WIDE,
    "qwen3": WIDE,
}
"""As SERVED, of shapes that the kernels compute as a whole."""
REFUSED: dict[str, dict[str, Any]] = {
    "bloom": {"n_layer": 2, "n_head": 4},
    "mamba": {},
    "qwen3_next": GROUPED,
    "llama4_text": GROUPED  # what it does only in texts that are longer than the load check's
    | {"num_local_experts": 4, "attention_chunk_size": 128, "attn_temperature_tuning": False},
    "llama4_text-scaled": GROUPED
    | {"num_local_experts": 4, "attention_chunk_size": 256, "floor_scale": 128},
}
PROMPTS = [
    "The capital of France is",
    "def fib(n):\n",
    "Once upon a time there was a small dog",
    "time year people " * 17,  # longer than the sliding window
]


@pytest.mark.parametrize("architecture", SERVED)
def test_equals_transformers(
    architecture: str, tmp_path: Path, model_path: Path, encode: Encode
) -> None:
    reference = _save(architecture, SERVED[architecture], tmp_path, model_path)
    engine = _engine(tmp_path)
    prompts = [encode(prompt) for prompt in PROMPTS]
    results = run(
        engine,
        [submission(i, prompt, 20, ignore_eos=True) for i, prompt in enumerate(prompts)],
        steps_between=1,
    )
    for i, prompt in enumerate(prompts):
        assert results[i].ids == _generate(reference, prompt, 20)
    assert len({id for result in results.values() for id in result.ids}) > 8, "a model that varies"
    engine.close()


@pytest.mark.parametrize("name", FUSED)
def test_a_decoder_in_one_call_equals_transformers(
    name: str, tmp_path: Path, model_path: Path, encode: Encode
) -> None:
    reference = _save(name.split("-")[0], FUSED[name], tmp_path, model_path, noisy=True)
    engine = _engine(tmp_path)
    if not engine._runner.model.is_batch_invariant:
        assert engine._runner.kernels is None, "it is fused wherever there are kernels"
        pytest.skip("there is no C++ compiler")
    prompts = [encode(prompt) for prompt in PROMPTS]
    results = run(
        engine,
        [submission(i, prompt, 20, ignore_eos=True) for i, prompt in enumerate(prompts)],
        steps_between=1,
    )
    for i, prompt in enumerate(prompts):
        assert results[i].ids == _generate(reference, prompt, 20)
    engine.close()


def test_refuses_to_quantize_what_has_nothing_to_quantize(tmp_path: Path, model_path: Path) -> None:
    _save("gpt2", GPT, tmp_path, model_path)
    with pytest.raises(LoadError, match="`quantize`"):
        _engine(tmp_path, quantize="int8")


@pytest.mark.parametrize("architecture", ["llama", "gemma2", "mixtral", "granitemoe"])
def test_is_found_faithful_in_bfloat16_too(
    architecture: str, tmp_path: Path, model_path: Path, encode: Encode
) -> None:
    """Where roundings are coarse, and make a router pick other experts now and then."""
    sizes = SERVED.get(architecture, GROUPED | {"num_local_experts": 4})
    _save(architecture, sizes, tmp_path, model_path)
    engine = _engine(tmp_path, dtype="bfloat16")
    result = run(engine, [submission(0, encode(PROMPTS[3]), 4, ignore_eos=True)])[0]
    assert len(result.ids) == 4
    engine.close()


@pytest.mark.parametrize("architecture", REFUSED)
def test_refuses_what_it_cannot_serve(architecture: str, tmp_path: Path, model_path: Path) -> None:
    name = architecture.split("-")[0]
    _save(name, REFUSED[architecture], tmp_path, model_path)
    with pytest.raises(LoadError, match=f"{name}.*cannot be served faithfully"):
        _engine(tmp_path)


def test_refuses_an_attention_that_differs(
    tmp_path: Path, model_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model whose own attention is not what it hands over: here, one that also adds a bias."""
    from transformers.models.llama import modeling_llama

    _save("llama", GROUPED, tmp_path, model_path)
    own = modeling_llama.eager_attention_forward

    def biased(module: Any, q: Any, k: Any, v: Any, mask: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        output, weights = own(module, q, k, v, mask, **kwargs)
        return output + v.mean(), weights

    monkeypatch.setattr(modeling_llama, "eager_attention_forward", biased)
    with pytest.raises(LoadError, match="packed logits differ"):
        _engine(tmp_path)


def _save(
    architecture: str,
    sizes: dict[str, Any],
    folder: Path,
    model_path: Path,
    *,
    noisy: bool = False,
) -> PreTrainedModel:
    """Write a random model with the bundled model's tokenizer."""
    torch.manual_seed(1)
    config = AutoConfig.for_model(architecture, **{**SIZES, **sizes})
    model: PreTrainedModel = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
        config, dtype=torch.float32
    )
    with torch.no_grad():  # as initialized, attention would hardly matter
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(4)
            elif noisy:  # biases and norms
                parameter.add_(torch.randn_like(parameter), alpha=0.2)
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(model_path).save_pretrained(folder)
    loaded: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    )
    return loaded


def _engine(folder: Path, dtype: str = "float32", quantize: str | None = None) -> Engine:
    return Engine(
        EngineConfig(
            model_id=str(folder),
            dtype=dtype,
            quantize=quantize,
            block_size=16,
            max_batch_total_tokens=2048,
            max_batch_prefill_tokens=16,
        )
    )


def _generate(model: PreTrainedModel, prompt: list[int], max_new_tokens: int) -> list[int]:
    ids = torch.tensor([prompt])
    output = model.generate(  # type: ignore[operator]
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=max_new_tokens,
        do_sample=False,
        eos_token_id=None,
    )
    generated: list[int] = output[0, len(prompt) :].tolist()
    return generated
