"""Metadata and tensors of a GGUF file, compared with what the loaded model uses.

transformers reads the keys that it knows and leaves out the others. One that is left out may change
what the model computes, so each is honoured here, or known to change nothing, or refused by name.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, cast

import torch
from gguf import GGUFReader
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig
from transformers.integrations.ggml import GGUF_CONFIG_MAPPING
from transformers.modeling_gguf_pytorch_utils import (
    TENSOR_PROCESSORS,
    TensorProcessor,
    get_gguf_hf_weights_map,
)

from tokenloom_engine.errors import LoadError
from tokenloom_engine.gguf_rope import FACTOR_TENSORS, apply_rope

logger = logging.getLogger(__name__)

ATTRIBUTES = {
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.sliding_window": "sliding_window",
    "attention.value_length": "head_dim",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
    "expert_weights_norm": "norm_topk_prob",
    "feed_forward_length": "intermediate_size",
    "final_logit_softcapping": "final_logit_softcapping",
    "use_parallel_residual": "use_parallel_residual",
    "vocab_size": "vocab_size",
}
"""Attributes of a configuration that hold a key's value, where transformers has no other for it."""
OTHER_ATTRIBUTES = {
    "gpt2": {"context_length": "n_positions", "feed_forward_length": "n_inner"},
    "gpt_oss": {"expert_feed_forward_length": "intermediate_size"},
    "minimax_m2": {"expert_feed_forward_length": "intermediate_size"},
}
"""As ATTRIBUTES, of some model types, instead of what transformers takes."""
ONE_VALUE = {
    "attention.causal": True,
    "expert_gating_func": 1,  # softmax
    "expert_group_count": 0,
    "expert_shared_count": 0,
    "expert_weights_scale": 1.0,
    "logit_scale": 1.0,
    "nextn_predict_layers": 0,
    "rope.scaling.yarn_log_multiplier": 0.0,
}
"""Keys with the only value that the models compute with."""
WITHOUT_EFFECT = ("tensor_data_layout", "pooling_type")
"""Keys that change nothing of what a language model computes."""
OTHER_PREFIXES = ("GGUF", "general", "imatrix", "quantize", "split", "tokenizer")
"""First parts of keys that describe the file, its quantization or its tokenizer."""
LARGEST = {("gemma2", 46), ("gemma3_text", 62)}
"""Model types and numbers of layers whose attention is scaled by the mean width of a head."""


def read_gguf_config(file: Path) -> PreTrainedConfig:
    """The configuration of the file's model, with all that its metadata says.

    Raises LoadError with the name of what cannot be honoured, and of tensors without a place.
    """
    reader = GGUFReader(file)
    values = {
        name: field.contents()
        for name, field in reader.fields.items()
        if not name.startswith("tokenizer.")
    }
    _check_general(values)
    config: PreTrainedConfig = AutoConfig.from_pretrained(str(file.parent), gguf_file=file.name)
    architecture = str(values["general.architecture"])
    prefix = f"{architecture}."
    keys = {k.removeprefix(prefix): v for k, v in values.items() if k.startswith(prefix)}
    others = [
        name
        for name in values
        if not name.startswith(prefix) and name.split(".")[0] not in OTHER_PREFIXES
    ]
    if others:
        logger.warning("Keys of %s that no model has: %s", file.name, ", ".join(others))
    rope = {name: keys.pop(name) for name in list(keys) if name.startswith("rope.")}
    _set_attributes(config, keys)
    if config.model_type == "minimax_m2":
        rope.pop("rope.dimension_count", None)
    log_multiplier = "rope.scaling.yarn_log_multiplier"
    if rope.get(log_multiplier) == ONE_VALUE[log_multiplier]:
        del rope[log_multiplier]
    factors = {
        tensor.name: tensor.data.astype(float).flatten().tolist()
        for tensor in reader.tensors
        if tensor.name in FACTOR_TENSORS
    }
    apply_rope(config, rope, factors)
    _check_tensors(config, architecture, [tensor.name for tensor in reader.tensors])
    return config


def _check_general(values: dict[str, Any]) -> None:
    kind = values.get("general.type", "model")
    if kind != "model":
        raise LoadError(f"the GGUF file is of the type {kind!r}, and not a model")
    if int(values.get("split.count", 1) or 1) > 1:
        raise LoadError(
            f"the GGUF file is one of {values['split.count']} parts: merge them into one file"
        )


def _set_attributes(config: PreTrainedConfig, keys: dict[str, Any]) -> None:
    """Give the configuration each key's value. Raises LoadError for a key without a place."""
    kind = config.model_type
    mapping = cast("dict[str, str | None]", GGUF_CONFIG_MAPPING.get(kind.removesuffix("_text"), {}))
    own = OTHER_ATTRIBUTES.get(kind, {})
    said: dict[str, str] = {}
    for key, value in keys.items():
        name = own.get(key) or mapping.get(key) or ATTRIBUTES.get(key)
        if key in WITHOUT_EFFECT or (key in ONE_VALUE and value == ONE_VALUE[key]):
            continue
        if key == "attention.sliding_window_pattern":
            _set_layer_types(config, value)
        elif key == "expert_gating_func" and key in mapping:
            continue  # transformers gives it a name
        elif name is None or not hasattr(config, name):
            raise LoadError(f"the GGUF file's {key} ({_short(value)}) cannot be honoured")
        else:
            value = _one(key, value)
            if said.get(name, value) != value:
                raise LoadError(
                    f"the GGUF file's {key} ({value}) cannot be honoured beside another "
                    f"`{name}` ({said[name]})"
                )
            said[name] = value
            if getattr(config, name) != value:
                setattr(config, name, value)
    if hasattr(config, "query_pre_attn_scalar"):
        is_largest = (kind, config.num_hidden_layers) in LARGEST
        mean = config.hidden_size // config.num_attention_heads
        config.query_pre_attn_scalar = mean if is_largest else config.head_dim


def _one(key: str, value: Any) -> Any:  # noqa: ANN401 - a number, a text or a truth value
    """The value that all layers have. Raises LoadError if they differ."""
    if not isinstance(value, list):
        return value
    if any(item != value[0] for item in value):
        raise LoadError(f"the GGUF file's {key} differs between layers ({_short(value)})")
    return value[0]


def _set_layer_types(config: PreTrainedConfig, pattern: int | list[bool]) -> None:
    """Set which layers have a sliding window: all but each `pattern`-th, or as it lists them."""
    count = config.num_hidden_layers
    slides = (
        pattern if isinstance(pattern, list) else [(i + 1) % pattern != 0 for i in range(count)]
    )
    if len(slides) != count or not hasattr(config, "layer_types"):
        raise LoadError("the GGUF file's attention.sliding_window_pattern cannot be honoured")
    config.layer_types = ["sliding_attention" if s else "full_attention" for s in slides]


def _check_tensors(config: PreTrainedConfig, architecture: str, names: list[str]) -> None:
    """Raise LoadError if a tensor has no place in the model."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    create_processor: Any = TENSOR_PROCESSORS.get(architecture, TensorProcessor)
    places = get_gguf_hf_weights_map(model, create_processor(config=config.to_dict()))
    unused = [
        name
        for name in names
        if name not in places
        and name.removesuffix(".weight") not in places
        and name not in FACTOR_TENSORS
    ]
    if unused:
        shown = ", ".join(unused[:5]) + (f" and {len(unused) - 5} more" if len(unused) > 5 else "")
        raise LoadError(
            f"the GGUF file has tensors that its {config.model_type} model lacks: {shown}"
        )


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 40 else f"{text[:40]}..."
