"""Checkpoints that lack a part of their model: refused, with the tensors' names."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from tokenloom_engine.checkpoint import resolve_checkpoint
from tokenloom_engine.errors import LoadError
from tokenloom_engine.model import Model

Tensors = dict[str, torch.Tensor]
SIZES = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 2,
}
EXPERTS = {"num_local_experts": 3, "num_experts_per_tok": 2}
LAYER = "model.layers.1."
EXPERT = f"{LAYER}block_sparse_moe.experts."
FP8 = {"quant_method": "fp8", "weight_block_size": [32, 32], "activation_scheme": "dynamic"}


def save(folder: Path, architecture: str = "llama", **settings: Any) -> Tensors:  # noqa: ANN401
    """Write a random model. Returns its tensors as they are in the file."""
    torch.manual_seed(1)
    config = AutoConfig.for_model(architecture, **{**SIZES, **settings})
    model: PreTrainedModel = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
        config, dtype=torch.float32
    )
    model.save_pretrained(folder)
    return load_file(folder / "model.safetensors")


def rewrite(folder: Path, tensors: Tensors) -> None:
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def load(folder: Path) -> Model:
    return Model.load(folder, torch.float32, torch.device("cpu"), trust_remote_code=False)


def refusal(folder: Path) -> str:
    with pytest.raises(LoadError) as raised:
        load(folder)
    assert "\n" not in str(raised.value)
    return str(raised.value)


def pop(*names: str) -> Callable[[Tensors], None]:
    def change(tensors: Tensors) -> None:
        for name in names:
            del tensors[name]

    return change


@pytest.mark.parametrize(
    ("architecture", "settings", "change", "named"),
    [
        ("llama", {"tie_word_embeddings": False}, pop("lm_head.weight"), "lm_head.weight"),
        ("llama", {}, pop(f"{LAYER}self_attn.q_proj.weight"), f"{LAYER}self_attn.q_proj.weight"),
        ("llama", {}, pop("model.norm.weight"), "model.norm.weight"),
        (
            "llama",
            {"tie_word_embeddings": True},
            pop("model.embed_tokens.weight"),
            "lm_head.weight, model.embed_tokens.weight",
        ),
        ("qwen2", {}, pop(f"{LAYER}self_attn.k_proj.bias"), f"{LAYER}self_attn.k_proj.bias"),
        ("mixtral", EXPERTS, pop(f"{EXPERT}1.w1.weight"), f"{LAYER}mlp.experts.gate_up_proj"),
        ("mixtral", EXPERTS, pop(f"{EXPERT}2.w2.weight"), f"{LAYER}mlp.experts.down_proj"),
        (
            "mixtral",
            EXPERTS,
            pop(*(f"{EXPERT}2.w{i}.weight" for i in (1, 2, 3))),
            f"{LAYER}mlp.experts.gate_up_proj",
        ),
    ],
)
def test_a_tensor_that_is_absent(
    tmp_path: Path,
    architecture: str,
    settings: dict[str, Any],
    change: Callable[[Tensors], None],
    named: str,
) -> None:
    tensors = save(tmp_path, architecture, **settings)
    change(tensors)
    rewrite(tmp_path, tensors)
    assert named in refusal(tmp_path)


def test_many_absent_tensors_are_counted(tmp_path: Path) -> None:
    tensors = save(tmp_path)
    rewrite(tmp_path, {name: t for name, t in tensors.items() if not name.startswith(LAYER)})
    message = refusal(tmp_path)
    assert "9 tensors" in message and "and 1 more" in message


def test_an_untied_output_layer_is_explained(tmp_path: Path) -> None:
    tensors = save(tmp_path, tie_word_embeddings=False)
    del tensors["lm_head.weight"]
    rewrite(tmp_path, tensors)
    assert "`tie_word_embeddings` must be true" in refusal(tmp_path)


def test_a_shape_that_differs_is_given(tmp_path: Path) -> None:
    tensors = save(tmp_path)
    rewrite(tmp_path, tensors | {f"{LAYER}mlp.up_proj.weight": torch.zeros(8, 64)})
    assert f"{LAYER}mlp.up_proj.weight ([8, 64] instead of [96, 64])" in refusal(tmp_path)


def test_a_part_of_an_index_that_lacks_a_tensor(tmp_path: Path) -> None:
    tensors = save(tmp_path)
    names = sorted(tensors)
    parts = {"a.safetensors": names[: len(names) // 2], "b.safetensors": names[len(names) // 2 :]}
    weight_map = {name: file for file, part in parts.items() for name in part}
    (tmp_path / "model.safetensors").unlink()
    index = {"metadata": {}, "weight_map": weight_map}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    for file, part in parts.items():
        stored = {name: tensors[name] for name in part}
        save_file(stored, tmp_path / file, metadata={"format": "pt"})
    load(tmp_path)
    absent = parts["b.safetensors"][3]
    stored.pop(absent)
    save_file(stored, tmp_path / "b.safetensors", metadata={"format": "pt"})
    assert absent in refusal(tmp_path)


def test_a_pickled_checkpoint_that_lacks_a_tensor(tmp_path: Path) -> None:
    tensors = save(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    torch.save(tensors, tmp_path / "pytorch_model.bin")
    load(tmp_path)
    del tensors[f"{LAYER}mlp.up_proj.weight"]
    torch.save(tensors, tmp_path / "pytorch_model.bin")
    assert f"{LAYER}mlp.up_proj.weight" in refusal(tmp_path)


def test_a_tied_output_layer_may_be_absent_or_the_only_one(tmp_path: Path) -> None:
    tensors = save(tmp_path, tie_word_embeddings=True)
    assert "lm_head.weight" not in tensors
    load(tmp_path)
    tensors["lm_head.weight"] = tensors.pop("model.embed_tokens.weight")
    rewrite(tmp_path, tensors)
    load(tmp_path)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.int8])
@pytest.mark.parametrize(
    ("described", "scale"), [(True, None), (True, "factor"), (False, "weight_scale_inv")]
)
def test_quantized_weights_without_a_scale_that_is_used(
    tmp_path: Path, dtype: torch.dtype, described: bool, scale: str | None
) -> None:
    save_quantized(tmp_path, dtype, scale, is_described=described)
    assert "tensors model.layers.0.mlp.down_proj.weight, " in refusal(tmp_path)


def test_fp8_with_scales_is_loaded(tmp_path: Path) -> None:
    original = save_quantized(tmp_path, torch.float8_e4m3fn, "weight_scale_inv")
    loaded = load(tmp_path).network.state_dict()[f"{LAYER}mlp.up_proj.weight"]
    error = (loaded - original[f"{LAYER}mlp.up_proj.weight"]).norm() / loaded.norm()
    assert error < 0.05


def save_quantized(
    folder: Path, dtype: torch.dtype, scale: str | None, *, is_described: bool = True
) -> Tensors:
    """Write a model with linear weights of 8 bits, 64 times as large as they were."""
    original = save(folder)
    tensors = dict(original)
    for name, tensor in original.items():
        if name.endswith("proj.weight"):
            tensors[name] = (tensor * 64).to(dtype)
            if scale is not None:
                rows, columns = (size // 32 for size in tensor.shape)
                tensors[name.replace("weight", scale)] = torch.full((rows, columns), 1 / 64)
    rewrite(folder, tensors)
    if is_described:
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, "quantization_config": FP8}))
    return original


def test_what_the_model_does_not_use_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tensors = save(tmp_path)
    bias = f"{LAYER}self_attn.q_proj.bias"
    frequencies = f"{LAYER}self_attn.rotary_emb.inv_freq"
    rewrite(tmp_path, tensors | {bias: torch.ones(64), frequencies: torch.ones(8)})
    with caplog.at_level(logging.WARNING):
        load(tmp_path)
    (warning,) = caplog.messages
    assert bias in warning and "inv_freq" not in warning


def test_a_gguf_file_that_lacks_a_tensor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    file = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_context_length(64)
    writer.add_embedding_length(64)
    writer.add_block_count(1)
    writer.add_feed_forward_length(96)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(96)
    shapes: dict[str, tuple[int, ...]] = {"attn_k": (32, 64), "attn_v": (32, 64)}
    shapes["attn_output"] = (64, 64)
    shapes |= {"ffn_gate": (96, 64), "ffn_up": (96, 64), "ffn_down": (64, 96)}
    shapes |= {"attn_norm": (64,), "ffn_norm": (64,)}
    stored = {f"blk.0.{name}.weight": shape for name, shape in shapes.items()}
    stored |= {"token_embd.weight": (96, 64), "output_norm.weight": (64,)}
    for name, shape in stored.items():
        writer.add_tensor(name, torch.ones(shape).numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(LoadError, match=r"lack tensor model\.layers\.0\.self_attn\.q_proj\.weight"):
        resolve_checkpoint(str(file), None, torch.float32)
