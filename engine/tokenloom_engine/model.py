"""A transformers model whose attention is ours."""

from __future__ import annotations

import itertools
import logging
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import AttentionInterface, AutoConfig, PreTrainedModel
from transformers.distributed.configuration_utils import DistributedConfig

from tokenloom_engine.attention.base import AttentionBackend, AttentionOptions, LayerSpec
from tokenloom_engine.attention.cpu import CpuAttention
from tokenloom_engine.errors import LoadError, one_line
from tokenloom_engine.kernels.decoder import FusedDecoder, can_fuse
from tokenloom_engine.kernels.library import Kernels
from tokenloom_engine.kernels.linear import linear_products, pack_linears, prepack_linears
from tokenloom_engine.kernels.norm import replace_norms
from tokenloom_engine.pretrained import load_pretrained
from tokenloom_engine.rope import RopeRanges, context_length, scale_rope
from tokenloom_engine.throughput import LinearProduct

logger = logging.getLogger(__name__)

AttendFunction = Callable[
    [int, torch.Tensor, torch.Tensor, torch.Tensor, AttentionOptions], torch.Tensor
]
"""(layer, query, key, value, options) -> output, as in AttentionBackend.attend."""

_names = (f"tokenloom_{number}" for number in itertools.count())

IGNORED = {
    # What transformers hands to an attention function and a packed, causal one has no use for.
    "attention_mask",
    "cache_position",
    "cu_seq_lens_k",
    "cu_seq_lens_q",
    "dropout",
    "head_mask",
    "is_causal",
    "layer_past",
    "logits_to_keep",
    "max_length_k",
    "max_length_q",
    "num_items_in_batch",
    "output_attentions",
    "output_hidden_states",
    "output_router_logits",
    "past_key_values",
    "position_bias",
    "position_embeddings",
    "position_ids",
    "return_dict",
    "token_type_ids",
    "use_cache",
}


def pick_device(name: str) -> torch.device:
    """The device of that name; `auto` is the GPU if there is one.

    A GPU comes with its index, which some of torch's functions demand.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise LoadError("`device` is cuda, but torch sees no GPU")
    if name == "cuda":
        return torch.device(name, torch.cuda.current_device())
    return torch.device(name)


def pick_dtype(name: str, device: torch.device) -> torch.dtype:
    """The dtype of that name; `auto` is bfloat16 where the hardware computes with it."""
    if name != "auto":
        dtype = getattr(torch, name)
        assert isinstance(dtype, torch.dtype)
        return dtype
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16
    features = torch.cpu.get_capabilities()
    has_bf16 = any(features.get(name) for name in ("avx512_bf16", "amx_bf16", "bf16"))
    return torch.bfloat16 if has_bf16 else torch.float32


class Model:
    """Runs forwards over packed batches; each attention layer calls `attend`."""

    def __init__(self, network: PreTrainedModel, attention_name: str, num_shards: int = 1) -> None:
        self.network = network
        self.num_shards = num_shards
        self.config = network.config.get_text_config()
        self.device = network.device
        self.dtype = network.dtype
        self.rope_ranges = RopeRanges.install(network, self.config)
        """Of a rotary embedding whose factors depend on the length of a text."""
        self.attend: AttendFunction = _no_attention
        self._decoder: FusedDecoder | None = None
        self._attention_name = attention_name
        AttentionInterface.register(attention_name, _weak(self))
        network.set_attn_implementation(attention_name)

    @classmethod
    def load(
        cls,
        path: Path,
        dtype: torch.dtype,
        device: torch.device,
        *,
        trust_remote_code: bool,
        num_shards: int = 1,
        rope_scaling: str | None = None,
        rope_factor: float | None = None,
    ) -> Model:
        """Load the weights from a local folder. Raises LoadError.

        With several shards this process has a part of the weights, and meets the others in each
        forward: they must run the same.
        """
        parallel: dict[str, Any] = {}
        if num_shards > 1:
            plan = DistributedConfig(tp_plan="auto", tp_size=num_shards)
            parallel["distributed_config"] = plan
        try:
            config = AutoConfig.from_pretrained(
                path, trust_remote_code=trust_remote_code, local_files_only=True
            )
            scale_rope(config.get_text_config(), rope_scaling, rope_factor)
            network = load_pretrained(
                path,
                config=config,
                dtype=dtype,
                attn_implementation="eager",
                trust_remote_code=trust_remote_code,
                local_files_only=True,
                **parallel,
            )
        except Exception as error:  # whatever a broken or foreign model makes transformers raise
            raise LoadError(f"cannot load the model {path}: {one_line(error)}") from error
        network.requires_grad_(False).train(False)
        if num_shards == 1:
            torch.nn.Module.to(network, device)
        return cls(network, next(_names), num_shards)

    @property
    def is_batch_invariant(self) -> bool:
        """Whether a sequence's logits are bitwise the same whatever else is in the batch."""
        return self._decoder is not None

    def optimize(
        self,
        layers: list[LayerSpec],
        attention: str,
        kernels: Kernels | None,
        quantize: str | None,
    ) -> str:
        """Put faster ways to compute in the place of the network's modules.

        `layers` as the probe saw them. Returns for the log what was done. The network's own
        modules are not to be used afterwards.
        """
        if self.num_shards > 1:
            # Each linear layer is one of transformers' with a part of its weight, and meets others.
            norms = replace_norms(self.network, kernels) if kernels is not None else 0
            return f"one of {self.num_shards} shards, by torch; {norms} norms by CPU kernels"
        if kernels is None:
            count = prepack_linears(self.network) if quantize is None else 0
            return f"{count} linear layers prepacked by oneDNN"
        if attention == "cpu" and can_fuse(self.network):
            self._decoder = FusedDecoder(self.network, layers, kernels, quantize)
            return f"CPU kernels ({kernels.level.title}), the decoder as a whole"
        norms = replace_norms(self.network, kernels)
        count = pack_linears(self.network, kernels, quantize)
        return f"CPU kernels ({kernels.level.title}), {count} linear layers and {norms} norms"

    @property
    def products(self) -> list[LinearProduct]:
        """The linear layers as they are computed."""
        if self._decoder is not None:
            return self._decoder.products
        return linear_products(self.network)

    def bind(self, backend: AttentionBackend) -> None:
        """Attend over this back end's cache from now on."""
        self.attend = backend.attend
        if self._decoder is not None:
            assert isinstance(backend, CpuAttention)
            self._decoder.bind(backend)

    @property
    def context_length(self) -> int | None:
        """Longest text that the model's configuration allows; None if it does not tell."""
        return context_length(self.config)

    @torch.inference_mode()
    def forward(
        self,
        input_ids: torch.Tensor,
        position_ids: torch.Tensor,
        logit_positions: torch.Tensor,
        is_long: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """input_ids and position_ids [1, T], logit_positions [N] -> logits [N, vocab_size].

        `is_long`: bool [1, T], the tokens of texts beyond the limit of `rope_ranges`; None is none.
        """
        if self.rope_ranges is not None:
            self.rope_ranges.is_long = is_long
        if self._decoder is not None:
            return self._decoder.forward(input_ids, position_ids, logit_positions, is_long)
        output = self.network(
            input_ids=input_ids,
            position_ids=position_ids,
            use_cache=False,
            logits_to_keep=logit_positions,
        )
        logits: torch.Tensor = output.logits
        return logits[0]

    @torch.inference_mode()
    def forward_eager(self, input_ids: torch.Tensor, *, is_long: bool = False) -> torch.Tensor:
        """The model's own attention over one whole sequence [1, T] -> logits [T, vocab_size].

        `is_long`: as the beginning of a text beyond the limit of `rope_ranges`.
        """
        num_tokens = input_ids.shape[1]
        position_ids = torch.arange(num_tokens, device=self.device).unsqueeze(0)
        if is_long:
            assert self.rope_ranges is not None
            # A last token that no other one attends to makes it a call of that length.
            last = position_ids.new_full((1, 1), self.rope_ranges.longest - 1)
            position_ids = torch.cat([position_ids, last], dim=1)
            input_ids = torch.cat([input_ids, input_ids[:, :1]], dim=1)
        self.network.set_attn_implementation("eager")
        if self.rope_ranges is not None:
            self.rope_ranges.follows_call = True
        try:
            output = self.network(input_ids=input_ids, position_ids=position_ids, use_cache=False)
        finally:
            self.network.set_attn_implementation(self._attention_name)
            if self.rope_ranges is not None:
                self.rope_ranges.follows_call = False
        logits: torch.Tensor = output.logits
        return logits[0, :num_tokens]

    def _attention(
        self,
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        scaling: float | None = None,
        sliding_window: int | None = None,
        softcap: float | None = None,
        s_aux: torch.Tensor | None = None,
        **kwargs: Any,  # noqa: ANN401 - each model hands over its own
    ) -> tuple[torch.Tensor, None]:
        """What transformers calls: q [1, heads, T, D], k and v [1, kv_heads, T, D]."""
        if attention_mask is not None:
            raise LoadError("its attention wants a mask of its own")
        unknown = [
            name for name, v in kwargs.items() if name not in IGNORED and v not in (None, False)
        ]
        if unknown:
            raise LoadError(f"its attention wants {', '.join(unknown)}")
        options = AttentionOptions(
            scaling=query.shape[-1] ** -0.5 if scaling is None else scaling,
            sliding_window=sliding_window,
            softcap=softcap,
            sinks=s_aux,
        )
        q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
        layer = module.layer_idx
        assert isinstance(layer, int)
        return self.attend(layer, q, k, v, options).unsqueeze(0), None


def _weak(model: Model) -> Callable[..., tuple[torch.Tensor, None]]:
    """The model's attention. transformers keeps it for ever, and shall not keep the model."""
    reference = weakref.ref(model)

    def attention(*args: Any, **kwargs: Any) -> tuple[torch.Tensor, None]:  # noqa: ANN401
        model = reference()
        assert model is not None, "its own network calls it"
        return model._attention(*args, **kwargs)

    return attention


def _no_attention(*_: object) -> torch.Tensor:
    raise AssertionError("no attention back end is set")
