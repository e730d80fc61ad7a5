"""Rotary embedding that a GGUF file describes, as parameters of transformers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from transformers import PreTrainedConfig

from tokenloom_engine.errors import LoadError

DEFAULT_BASE = 10000.0
"""`rope.freq_base` of a file that has none, as llama.cpp takes it."""
PARTIAL = ("nemotron", "phi3", "stablelm")
"""Model types whose rotary embedding may turn a part of each head."""
SCALING = "rope.scaling."
FREQUENCIES = "rope_freqs.weight"
SHORT, LONG = "rope_factors_short.weight", "rope_factors_long.weight"
FACTOR_TENSORS = (FREQUENCIES, SHORT, LONG)
"""Tensors of factors that frequencies are divided by."""
WITHOUT_EFFECT = ("finetuned",)
"""Keys under `rope.scaling.` that llama.cpp reads and does not compute with."""
YARN_KEYS = {
    "yarn_beta_fast": "beta_fast",
    "yarn_beta_slow": "beta_slow",
    "beta_fast": "beta_fast",
    "beta_slow": "beta_slow",
}


def apply_rope(
    config: PreTrainedConfig,
    keys: Mapping[str, Any],
    factors: Mapping[str, list[float]],
) -> None:
    """Set the rotary embedding's parameters of `config`.

    `keys`: the file's under `rope.`, with that, and without the architecture. `factors`: its
    `FACTOR_TENSORS`. Raises LoadError, with its name, for what transformers cannot compute.
    """
    keys = dict(keys)
    parameters: dict[str, Any] = getattr(config, "rope_parameters", None) or {}
    if not parameters and (keys or factors):
        raise _unused(next(iter([*keys, *factors])))
    nested = {kind: value for kind, value in parameters.items() if isinstance(value, dict)}
    scaled = nested.get("full_attention", parameters)
    _set_base(scaled, nested, keys)
    _set_dimensions(config, scaled, keys)
    scaling = {name.removeprefix(SCALING): keys.pop(name) for name in list(keys) if SCALING in name}
    if "rope.scale_linear" in keys:
        scaling.setdefault("factor", keys.pop("rope.scale_linear"))
    if factors:
        if nested:
            raise _unused(next(iter(factors)))
        _set_factors(config, scaled, scaling, factors)
    else:
        _set_scaling(config, scaled, scaling)
    if keys:
        raise _unused(next(iter(keys)))


def _set_base(
    scaled: dict[str, Any], nested: dict[str, dict[str, Any]], keys: dict[str, Any]
) -> None:
    base = keys.pop("rope.freq_base", None)
    if base is not None or (scaled and not nested):
        scaled["rope_theta"] = float(DEFAULT_BASE if base is None else base)
    if "sliding_attention" in nested and "rope.freq_base_swa" in keys:
        nested["sliding_attention"]["rope_theta"] = float(keys.pop("rope.freq_base_swa"))


def _set_dimensions(config: PreTrainedConfig, scaled: dict[str, Any], keys: dict[str, Any]) -> None:
    """Set how many dimensions of a head are turned."""
    head_dim = _head_dim(config)
    dimensions = keys.pop("rope.dimension_count", None)
    if dimensions is None:
        return
    if config.model_type in PARTIAL:
        scaled["partial_rotary_factor"] = dimensions / head_dim
        if hasattr(config, "partial_rotary_factor"):
            config.partial_rotary_factor = dimensions / head_dim
    elif dimensions != head_dim and config.model_type != "minimax_m2":
        raise _unused("rope.dimension_count", f"{dimensions}, where heads have {head_dim}")


def _set_scaling(config: PreTrainedConfig, scaled: dict[str, Any], scaling: dict[str, Any]) -> None:
    """Set linear scaling or YaRN, or none."""
    kind, factor = scaling.pop("type", None), scaling.pop("factor", None)
    original = scaling.pop("original_context_length", None)
    attention = scaling.pop("attn_factor", 1.0)
    for name in WITHOUT_EFFECT:
        scaling.pop(name, None)
    if kind is None and factor is not None:
        kind = "linear"
    if kind == "yarn":
        factor = float(factor or config.max_position_embeddings / original)
        own = scaled if scaled.get("rope_type") == "yarn" else {}
        new = {k: v for k, v in own.items() if k == "truncate"}
        new |= {YARN_KEYS[k]: float(scaling.pop(k)) for k in list(scaling) if k in YARN_KEYS}
        if attention != 1:
            new["attention_factor"] = float(attention) * (0.1 * math.log(factor) + 1)
        new["original_max_position_embeddings"] = int(original or config.max_position_embeddings)
        _replace(scaled, "yarn", factor=factor, **new)
    elif attention != 1:
        raise _unused(f"{SCALING}attn_factor", str(attention))
    elif kind == "linear":
        if factor not in (None, 0, 1):
            _replace(scaled, "linear", factor=float(factor))
    elif kind not in (None, "none"):
        raise _unused(f"{SCALING}type", repr(kind))
    if scaling:
        raise _unused(f"{SCALING}{next(iter(scaling))}")


def _set_factors(
    config: PreTrainedConfig,
    scaled: dict[str, Any],
    scaling: dict[str, Any],
    factors: Mapping[str, list[float]],
) -> None:
    """Set what tensors say: longrope, with equal factors for all texts if there is one tensor."""
    kind, factor = scaling.pop("type", None), scaling.pop("factor", None)
    original = scaling.pop("original_context_length", None)
    attention = scaling.pop("attn_factor", 1.0)
    for name in WITHOUT_EFFECT:
        scaling.pop(name, None)
    if FREQUENCIES in factors:
        short = long = factors[FREQUENCIES]
        original, names = config.max_position_embeddings, {FREQUENCIES}
        if kind not in (None, "none", "linear") or factor not in (None, 0, 1) or attention != 1:
            raise _unused(FREQUENCIES, f"with {SCALING}type {kind!r}")
    else:
        names = {SHORT, LONG}
        if set(factors) != names or original is None or kind not in (None, "none", "longrope"):
            raise _unused(next(iter(factors)), "without the other tensor or its context length")
        short, long = factors[SHORT], factors[LONG]
    if set(factors) != names:
        raise _unused(next(iter(set(factors) - names)))
    if scaling:
        raise _unused(f"{SCALING}{next(iter(scaling))}")
    width = int(_head_dim(config) * scaled.get("partial_rotary_factor", 1.0)) // 2
    if len(short) != width or len(long) != width:
        raise _unused(next(iter(factors)), f"{len(short)} factors, where {width} are used")
    if hasattr(config, "original_max_position_embeddings"):
        config.original_max_position_embeddings = int(original)
    _replace(
        scaled,
        "longrope",
        short_factor=short,
        long_factor=long,
        original_max_position_embeddings=int(original),
        attention_factor=float(attention),
    )


def _replace(scaled: dict[str, Any], kind: str, **parameters: Any) -> None:  # noqa: ANN401
    kept = {k: v for k, v in scaled.items() if k in ("rope_theta", "partial_rotary_factor")}
    scaled.clear()
    scaled.update(kept, rope_type=kind, **parameters)


def _head_dim(config: PreTrainedConfig) -> int:
    own = getattr(config, "head_dim", None)
    return int(own or config.hidden_size // config.num_attention_heads)


def _unused(name: str, why: str = "") -> LoadError:
    return LoadError(f"the GGUF file's {name}{f' ({why})' if why else ''} cannot be honoured")
