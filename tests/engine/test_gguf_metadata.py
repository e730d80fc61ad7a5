"""Whatever a GGUF file says of its model is honoured, or refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from tokenloom_engine.checkpoint import resolve_checkpoint
from tokenloom_engine.errors import LoadError
from tokenloom_engine.gguf_metadata import read_gguf_config

Keys = dict[str, Any]

HEADS, WIDTH, LAYERS, VOCABULARY = 4, 64, 2, 128
BASE: Keys = {
    "vocab_size": VOCABULARY,
    "context_length": 256,
    "embedding_length": WIDTH,
    "block_count": LAYERS,
    "feed_forward_length": 96,
    "attention.head_count": HEADS,
    "attention.head_count_kv": HEADS,
    "attention.layer_norm_rms_epsilon": 1e-5,
    "rope.dimension_count": 16,
    "rope.freq_base": 20000.0,
}
GEMMA = {"attention.key_length": 16, "attention.value_length": 16, "attention.sliding_window": 32}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 20000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
LONGROPE = {
    "rope_factors_short.weight": [1.0] * 8,
    "rope_factors_long.weight": [2.0 + i for i in range(8)],
}


def write(
    folder: Path,
    architecture: str,
    keys: Keys,
    tensors: dict[str, Any] | None = None,
    **general: Any,  # noqa: ANN401 - of any type
) -> Path:
    """Write a GGUF file without a tokenizer, with `keys` of the architecture but those of None."""
    file = folder / "model.gguf"
    writer = gguf.GGUFWriter(file, architecture)
    writer.add_vocab_size(VOCABULARY)
    writer.add_pad_token_id(0)
    for name, value in {
        **{f"{architecture}.{name}": value for name, value in (BASE | keys).items()},
        **general,
    }.items():
        if value is None or name.endswith(".vocab_size"):
            continue
        add: dict[type, Any] = {
            bool: writer.add_bool,
            int: writer.add_uint32,
            float: writer.add_float32,
        }
        add |= {str: writer.add_string, list: writer.add_array}
        add[type(value)](name, value)
    for name, values in (tensors or {}).items():
        writer.add_tensor(name, np.asarray(values, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


@pytest.mark.parametrize(
    ("architecture", "keys", "tensors", "expected"),
    [
        ("llama", {}, {}, {"rope_theta": 20000.0, "rope_type": "default"}),
        ("llama", {"rope.freq_base": None}, {}, {"rope_theta": 10000.0}),
        ("starcoder2", {"rope.freq_base": 30000.0}, {}, {"rope_theta": 30000.0}),
        (
            "qwen2",
            {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0},
            {},
            {"rope_type": "linear", "factor": 4.0},
        ),
        ("qwen2", {"rope.scale_linear": 4.0}, {}, {"rope_type": "linear", "factor": 4.0}),
        ("qwen2", {"rope.scaling.type": "none"}, {}, {"rope_type": "default"}),
        (
            "qwen2",
            {
                "rope.scaling.type": "yarn",
                "rope.scaling.factor": 4.0,
                "rope.scaling.original_context_length": 64,
                "rope.scaling.yarn_beta_fast": 16.0,
                "rope.scaling.finetuned": True,
            },
            {},
            {
                "rope_type": "yarn",
                "factor": 4.0,
                "original_max_position_embeddings": 64,
                "beta_fast": 16.0,
            },
        ),
        ("phi3", {"rope.dimension_count": 12}, {}, {"partial_rotary_factor": 0.75}),
        (
            "phi3",
            {"rope.scaling.original_context_length": 64, "rope.scaling.attn_factor": 1.25},
            LONGROPE,
            {
                "rope_type": "longrope",
                "short_factor": LONGROPE["rope_factors_short.weight"],
                "long_factor": LONGROPE["rope_factors_long.weight"],
                "attention_factor": 1.25,
                "original_max_position_embeddings": 64,
            },
        ),
    ],
)
def test_rope_is_honoured(
    architecture: str, keys: Keys, tensors: Keys, expected: Keys, tmp_path: Path
) -> None:
    if architecture == "starcoder2":
        keys = keys | {
            "attention.layer_norm_epsilon": 1e-5,
            "attention.layer_norm_rms_epsilon": None,
        }
    config = read_gguf_config(write(tmp_path, architecture, keys, tensors))
    assert expected.items() <= config.rope_parameters.items()
    assert config.max_position_embeddings == 256


@pytest.mark.parametrize(
    ("architecture", "keys", "expected"),
    [
        ("phi3", {"attention.sliding_window": 47}, {"sliding_window": 47}),
        (
            "gemma2",
            GEMMA | {"attn_logit_softcapping": 20.0, "final_logit_softcapping": 10.0},
            {"attn_logit_softcapping": 20.0, "final_logit_softcapping": 10.0, "sliding_window": 32},
        ),
        (
            "gemma3",
            GEMMA | {"attention.sliding_window_pattern": 2, "rope.freq_base_swa": 500.0},
            {"layer_types": ["sliding_attention", "full_attention"]},
        ),
        (
            "qwen3moe",
            {
                "attention.key_length": 16,
                "expert_count": 4,
                "expert_used_count": 2,
                "expert_feed_forward_length": 48,
            },
            {"moe_intermediate_size": 48, "num_experts": 4, "num_experts_per_tok": 2},
        ),
        ("llama", {"attention.causal": True, "attention.key_length": 16}, {"head_dim": 16}),
    ],
)
def test_other_keys_are_honoured(
    architecture: str, keys: Keys, expected: Keys, tmp_path: Path
) -> None:
    config = read_gguf_config(write(tmp_path, architecture, keys))
    assert {name: getattr(config, name) for name in expected} == expected
    if architecture == "gemma3":
        assert config.rope_parameters["sliding_attention"]["rope_theta"] == 500.0
        assert config.rope_parameters["full_attention"]["rope_theta"] == 20000.0


@pytest.mark.parametrize(
    ("architecture", "keys", "tensors", "name"),
    [
        ("llama", {"attention.sliding_window": 32}, {}, r"attention\.sliding_window \(32\)"),
        ("llama", {"attn_logit_softcapping": 30.0}, {}, "attn_logit_softcapping"),
        ("llama", {"logit_scale": 0.5}, {}, "logit_scale"),
        ("llama", {"attention.scale": 0.5}, {}, r"attention\.scale"),
        ("llama", {"attention.causal": False}, {}, r"attention\.causal"),
        ("llama", {"attention.key_length": 32}, {}, r"attention\.key_length|rope\.dimension_count"),
        ("llama", {"attention.head_count_kv": [4, 2]}, {}, "num_key_value_heads"),
        ("qwen2", {"feed_forward_length": [96, 48]}, {}, "intermediate_size|feed_forward_length"),
        ("llama", {"something.new": 1}, {}, r"something\.new"),
        ("llama", {"rope.dimension_sections": [4, 4]}, {}, r"rope\.dimension_sections"),
        ("llama", {"rope.scaling.type": "other"}, {}, r"rope\.scaling\.type"),
        ("llama", {"rope.scaling.attn_factor": 1.2}, {}, r"rope\.scaling\.attn_factor"),
        ("llama", {"rope.scaling.new": 1.0}, {}, r"rope\.scaling\.new"),
        ("qwen2", {"rope.dimension_count": 8}, {}, r"rope\.dimension_count"),
        ("llama", {"expert_shared_count": 1}, {}, "expert_shared_count"),
        ("qwen3", {"expert_weights_scale": 2.5}, {}, "expert_weights_scale"),
        ("llama", {}, {"rope_freqs.weight": [1.0] * 4}, r"rope_freqs\.weight \(4 factors"),
        ("llama", {}, {"rope_factors_long.weight": [1.0] * 8}, r"rope_factors_long\.weight"),
        ("llama", {}, {"blk.0.attn_q.scale": [1.0]}, r"lacks: blk\.0\.attn_q\.scale"),
        ("llama", {}, {"blk.0.attn_q_norm.weight": [1.0] * 16}, r"blk\.0\.attn_q_norm"),
        ("llama", {}, {"blk.7.attn_norm.weight": [1.0] * 64}, r"blk\.7\.attn_norm"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(
    architecture: str, keys: Keys, tensors: Keys, name: str, tmp_path: Path
) -> None:
    file = write(tmp_path, architecture, keys, tensors)
    with pytest.raises(LoadError, match=name) as raised:
        resolve_checkpoint(str(file), None, torch.bfloat16)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("general", "reason"),
    [({"general.type": "adapter"}, "'adapter'"), ({"split.count": 3}, "one of 3 parts")],
)
def test_a_file_that_is_no_whole_model(general: Keys, reason: str, tmp_path: Path) -> None:
    file = write(tmp_path, "llama", {}, **general)
    with pytest.raises(LoadError, match=reason):
        read_gguf_config(file)


def test_llama_3_frequencies_change_the_logits_as_in_transformers(tmp_path: Path) -> None:
    torch.manual_seed(1)
    config = AutoConfig.for_model(
        "llama",
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        intermediate_size=96,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        rms_norm_eps=1e-5,
        max_position_embeddings=256,
        rope_parameters=LLAMA3,
        tie_word_embeddings=True,
    )
    model: PreTrainedModel = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
        config, dtype=torch.float32
    )
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(4)
    rotary: Any = model.model.rotary_emb
    plain = 1 / 20000.0 ** (torch.arange(0, 16, 2) / 16)
    frequencies = (plain / rotary.inv_freq).tolist()
    file = write(tmp_path, "llama", {}, {"rope_freqs.weight": frequencies} | _llama_tensors(model))
    loaded = AutoModelForCausalLM.from_pretrained(
        tmp_path, gguf_file=file.name, config=read_gguf_config(file), dtype=torch.float32
    )
    ids = torch.arange(100).unsqueeze(0)
    with torch.inference_mode():
        expected, found = model(ids).logits, loaded(ids).logits
    torch.testing.assert_close(found, expected, atol=1e-3, rtol=1e-3)


def _llama_tensors(model: PreTrainedModel) -> dict[str, Any]:
    """The tensors of a Llama under GGUF's names, query and key weights in GGUF's order."""
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, LAYERS)
    tensors: dict[str, Any] = {}
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight":
            continue
        own = names.get_name(name.removesuffix(".weight"))
        if "q_proj" in name or "k_proj" in name:
            halves = tensor.reshape(HEADS, 2, WIDTH // HEADS // 2, WIDTH)
            tensor = halves.swapaxes(1, 2).reshape(tensor.shape)
        tensors[f"{own}.weight"] = tensor.numpy()
    return tensors
