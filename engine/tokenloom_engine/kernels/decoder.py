"""The decoder layers of the Llama family as one call of the kernels.

It replaces transformers' modules where it computes the same: the classes of `FAMILY`, with the
settings that `_suits` asks for. The engine then compares its logits with the modules' own.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import torch

from tokenloom_engine.attention.base import LayerSpec
from tokenloom_engine.attention.cpu import CpuAttention
from tokenloom_engine.kernels.library import LANES, STORAGE, Kernels
from tokenloom_engine.kernels.linear import pack_linear
from tokenloom_engine.kernels.norm import is_plain_norm
from tokenloom_engine.kernels.packing import PackedWeight, is_suited
from tokenloom_engine.kernels.structs import Attention, Decoder, DecoderLayer, Forward
from tokenloom_engine.rope import RangedRotary
from tokenloom_engine.throughput import LinearProduct

FAMILY = frozenset(
    {"LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"}
)
FIXED_ROTARY = frozenset({"default", "linear", "llama3", "longrope", "yarn"})
"""Rotary embeddings whose angles depend on the position alone. Of `longrope`, what depends on the
length of the text is a `RangedRotary`."""


@dataclass(slots=True)
class _Layer:
    """One layer's weights, and what its attention wants."""

    query_key_value: PackedWeight
    output: PackedWeight
    gate_up: PackedWeight
    down: PackedWeight
    input_norm: torch.Tensor
    middle_norm: torch.Tensor
    query_norm: torch.Tensor | None
    key_norm: torch.Tensor | None
    num_heads: int
    scale: float
    window: int

    def most_groups(self) -> int:
        """Of inputs that share a scale, in any of the weights."""
        weights = self.query_key_value, self.output, self.gate_up, self.down
        return max(w.num_inputs // w.group if w.group else 1 for w in weights)


class FusedDecoder:
    """A whole network of the Llama family: ids to logits."""

    def __init__(
        self,
        network: Any,  # noqa: ANN401 - transformers' own module
        layers: list[LayerSpec],
        kernels: Kernels,
        quantize: str | None,
    ) -> None:
        """Take over the weights of `network`; `can_fuse` must hold.

        The network's own linear layers are then empty, so that no weight is there twice.
        """
        model = network.model
        self._kernels = kernels
        self._embedding = model.embed_tokens.weight
        self._rotary = model.rotary_emb
        self._norm = model.norm.weight.detach().contiguous()
        self._epsilon = float(model.norm.variance_epsilon)
        self._storage = STORAGE[self._embedding.dtype]
        self._head = pack_linear(network.lm_head, quantize)
        windows = {spec.index: spec.sliding_window or 0 for spec in layers}
        self._layers = [
            _take(layer, windows[index], quantize) for index, layer in enumerate(model.layers)
        ]
        self._is_quantized = quantize is not None
        self._most_groups = max(layer.most_groups() for layer in self._layers)
        self._backend: CpuAttention | None = None
        self._decoder = Decoder()
        self._cosines = self._sines = torch.empty(0, 0)
        """[positions, dim / 2]; behind those of short texts, those of long ones."""
        self._num_angles = 0
        """Positions of the longest text that these are there for."""
        self._spaces: list[torch.Tensor] = []
        self._quantized = torch.empty(0, dtype=torch.int16)
        self._row_scales = torch.empty(0)

    @property
    def products(self) -> list[LinearProduct]:
        """All linear layers, in the order in which a forward computes them."""
        weights = [
            weight
            for layer in self._layers
            for weight in (layer.query_key_value, layer.output, layer.gate_up, layer.down)
        ]
        return [weight.as_product(self._kernels) for weight in (*weights, self._head)]

    def bind(self, backend: CpuAttention) -> None:
        """Attend over this cache from now on."""
        self._backend = backend
        structs = (DecoderLayer * len(self._layers))()
        for i, layer in enumerate(self._layers):
            structs[i] = _as_struct(layer, backend, i)
        self._decoder = Decoder(
            structs,
            len(self._layers),
            self._epsilon,
            self._storage,
            self._kernels.threads,
            self._embedding.shape[1],
            self._norm.data_ptr(),
            self._kernels.tiles.bfloat16,
            self._kernels.tiles.int8,
        )

    def forward(
        self,
        input_ids: torch.Tensor,
        position_ids: torch.Tensor,
        logit_positions: torch.Tensor,
        is_long: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """input_ids and position_ids [1, T], logit_positions [N] -> float32 [N, vocab_size].

        `is_long`: bool [1, T], the tokens of texts beyond the limit of `RopeRanges`.
        """
        assert self._backend is not None
        backend = self._backend
        hidden = torch.nn.functional.embedding(input_ids[0], self._embedding)
        tokens, num_wanted = len(hidden), len(logit_positions)
        longest = int(backend.lengths.max())
        if longest > self._num_angles:
            self._extend_angles(longest)
        if is_long is not None:
            assert isinstance(self._rotary, RangedRotary)
            position_ids = position_ids + is_long * self._rotary.limit
        if tokens > len(self._row_scales):
            self._make_room(tokens)
        self._kernels.forward(
            self._decoder,
            Forward(
                hidden.data_ptr(),
                self._cosines.data_ptr(),
                self._sines.data_ptr(),
                position_ids.data_ptr(),
                backend.slots.data_ptr(),
                backend.tables.data_ptr(),
                backend.starts.data_ptr(),
                backend.lengths.data_ptr(),
                backend.tables.stride(0),
                logit_positions.data_ptr(),
                tokens,
                num_wanted,
                len(backend.lengths),
                *(space.data_ptr() for space in self._spaces),
                self._quantized.data_ptr(),
                self._row_scales.data_ptr(),
            ),
        )
        normed = self._spaces[0][:num_wanted]
        return self._head.multiply(self._kernels, normed, torch.float32)

    def _extend_angles(self, num_positions: int) -> None:
        """Know the rotary embedding of so many positions, and some more."""
        self._num_angles = 2 * num_positions
        if isinstance(self._rotary, RangedRotary):  # positions beyond its longest text change it
            self._num_angles = max(num_positions, min(self._num_angles, self._rotary.longest))
        positions = torch.arange(self._num_angles).unsqueeze(0)
        if isinstance(self._rotary, RangedRotary):
            all_short = torch.arange(self._rotary.limit).unsqueeze(0)
            short = self._rotary.short(self._embedding, all_short)
            long = self._rotary.long(self._embedding, positions)
            angles = [torch.cat(both, dim=1) for both in zip(short, long, strict=True)]
        else:
            angles = self._rotary(self._embedding, positions)
        self._cosines, self._sines = (
            x[0, :, : x.shape[-1] // 2].float().contiguous() for x in angles
        )

    def _make_room(self, tokens: int) -> None:
        """Space for what is computed between layers, kept from one forward to the next."""
        width, first = self._embedding.shape[1], self._layers[0]
        wide = max(first.query_key_value.num_outputs, first.gate_up.num_outputs)
        narrow = max(first.output.num_inputs, first.down.num_inputs)
        self._spaces = [self._embedding.new_empty(tokens, n) for n in (width, width, wide, narrow)]
        num_inputs = tokens * max(width, narrow) if self._is_quantized else 0
        self._quantized = torch.empty(num_inputs, dtype=torch.int16)
        self._row_scales = torch.empty(tokens, self._most_groups)


def can_fuse(network: Any) -> bool:  # noqa: ANN401 - transformers' own module
    """Whether `FusedDecoder` computes what this network, a causal language model, does."""
    if type(network).__name__ not in FAMILY or not is_suited(network.lm_head.weight):
        return False
    rotary = network.model.rotary_emb
    is_fixed = getattr(rotary, "rope_type", None) in FIXED_ROTARY
    if not is_fixed and not isinstance(rotary, RangedRotary):
        return False
    if network.lm_head.bias is not None or not is_plain_norm(network.model.norm):
        return False
    return all(_suits(layer) for layer in network.model.layers)


def _suits(layer: Any) -> bool:  # noqa: ANN401 - transformers' own module
    attention, mlp = layer.self_attn, layer.mlp
    norms = [layer.input_layernorm, layer.post_attention_layernorm]
    norms += [getattr(attention, name) for name in ("q_norm", "k_norm") if hasattr(attention, name)]
    linears = [getattr(attention, f"{name}_proj") for name in "qkvo"]
    linears += [mlp.gate_proj, mlp.up_proj, mlp.down_proj]
    return (
        all(is_plain_norm(norm) for norm in norms)
        and all(type(linear) is torch.nn.Linear and is_suited(linear.weight) for linear in linears)
        and type(mlp.act_fn).__name__ in ("SiLU", "SiLUActivation")
        and attention.head_dim % (2 * LANES) == 0
        and mlp.gate_proj.out_features % LANES == 0
    )


def _take(layer: Any, window: int, quantize: str | None) -> _Layer:  # noqa: ANN401 - as above
    attention, mlp = layer.self_attn, layer.mlp
    q, k, v = attention.q_proj, attention.k_proj, attention.v_proj
    query_norm = getattr(attention, "q_norm", None)
    key_norm = getattr(attention, "k_norm", None)
    taken = _Layer(
        query_key_value=pack_linear(_joined(q, k, v), quantize),
        output=pack_linear(attention.o_proj, quantize),
        gate_up=pack_linear(_joined(mlp.gate_proj, mlp.up_proj), quantize),
        down=pack_linear(mlp.down_proj, quantize),
        input_norm=layer.input_layernorm.weight.detach().contiguous(),
        middle_norm=layer.post_attention_layernorm.weight.detach().contiguous(),
        query_norm=None if query_norm is None else query_norm.weight.detach().contiguous(),
        key_norm=None if key_norm is None else key_norm.weight.detach().contiguous(),
        num_heads=q.out_features // attention.head_dim,
        scale=float(attention.scaling),
        window=window,
    )
    for linear in (q, k, v, attention.o_proj, mlp.gate_proj, mlp.up_proj, mlp.down_proj):
        linear.weight = torch.nn.Parameter(linear.weight.new_empty(0), requires_grad=False)
    return taken


def _joined(*linears: torch.nn.Linear) -> torch.nn.Linear:
    """One layer whose outputs are those of all, one after the other."""
    weight = torch.cat([linear.weight.detach() for linear in linears])
    joined = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
    joined.weight = torch.nn.Parameter(weight, requires_grad=False)
    biases: list[torch.Tensor | None] = [getattr(linear, "bias", None) for linear in linears]
    if any(bias is not None for bias in biases):
        parts = [
            weight.new_zeros(linear.out_features) if bias is None else bias.detach()
            for linear, bias in zip(linears, biases, strict=True)
        ]
        joined.bias = torch.nn.Parameter(torch.cat(parts), requires_grad=False)
    return joined


def _as_struct(layer: _Layer, backend: CpuAttention, index: int) -> DecoderLayer:
    attention = Attention()
    attention.cache = backend.caches[index]
    attention.num_heads = layer.num_heads
    attention.scale = layer.scale
    attention.window = layer.window

    def pointer(tensor: torch.Tensor | None) -> ctypes.c_void_p:
        return ctypes.c_void_p(None if tensor is None else tensor.data_ptr())

    return DecoderLayer(
        pointer(layer.input_norm),
        layer.query_key_value.as_struct(),
        pointer(layer.query_norm),
        pointer(layer.key_norm),
        layer.output.as_struct(),
        pointer(layer.middle_norm),
        layer.gate_up.as_struct(),
        layer.down.as_struct(),
        attention,
    )
