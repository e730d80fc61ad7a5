"""A model that is loaded, and seen to say what it says elsewhere."""

from __future__ import annotations

import logging
from pathlib import Path

import torch
from tokenizers import Tokenizer

from tokenloom_engine.attention import resolve_attention, settle_attention
from tokenloom_engine.config import EngineConfig
from tokenloom_engine.errors import LoadError, UnfaithfulError
from tokenloom_engine.kernels.library import Kernels
from tokenloom_engine.kernels.tile_choice import choose_tiles
from tokenloom_engine.model import Model
from tokenloom_engine.probe import probe_layers, probe_logits, reference_logits
from tokenloom_engine.speed_log import log_speed
from tokenloom_engine.tokenizer_file import read_tokenizer
from tokenloom_engine.vocabulary import Vocabulary

logger = logging.getLogger(__name__)


class ServedModel:
    """A model with its tokenizer, and how it is computed."""

    def __init__(
        self,
        config: EngineConfig,
        path: Path,
        dtype: torch.dtype,
        device: torch.device,
        num_shards: int,
        kernels: Kernels | None,
    ) -> None:
        """Load, and see that it is served faithfully. Raises UnfaithfulError.

        `kernels`: those of the CPU that are to compute it.
        """
        self.kernels = kernels
        attention = resolve_attention(config.attention, config.block_size, dtype, device, kernels)
        self.model = Model.load(
            path,
            dtype,
            device,
            trust_remote_code=config.trust_remote_code,
            num_shards=num_shards,
            rope_scaling=config.rope_scaling,
            rope_factor=config.rope_factor,
        )
        self.tokenizer_json, self.eos_token_ids = read_tokenizer(
            self.model, path, trust_remote_code=config.trust_remote_code
        )
        self.vocabulary = Vocabulary(Tokenizer.from_str(self.tokenizer_json), self.eos_token_ids)
        embedding = self.model.network.get_input_embeddings()
        num_embeddings = getattr(embedding, "num_embeddings", self.vocabulary.size)
        if self.vocabulary.size > num_embeddings:
            raise LoadError(
                f"the tokenizer has {self.vocabulary.size} tokens, and the model {num_embeddings} "
                "embeddings: one of them is not the other's"
            )
        self.layers = probe_layers(self.model)
        attention = settle_attention(config.attention, attention, self.layers)
        self._references = reference_logits(self.model)
        self.vocab_size = self._references[0].shape[-1]
        self.num_parameters = sum(p.numel() for p in self.model.network.parameters())
        how = self.model.optimize(self.layers, attention, kernels, config.quantize)
        logger.info("%s; attention by %s", how, attention)
        if self.model.rope_ranges is not None:
            logger.info("%s", self.model.rope_ranges)
        self.attention = self._settled(attention, config)
        """The name of the back end."""
        if device.type == "cpu" and num_shards == 1:
            log_speed(self.model, self.num_parameters, kernels, config.quantize)

    @classmethod
    def load(
        cls,
        config: EngineConfig,
        path: Path,
        dtype: torch.dtype,
        device: torch.device,
        num_shards: int,
    ) -> ServedModel:
        """Load, on a CPU with its kernels; without, where with them logits are not the model's.

        Raises LoadError, UnfaithfulError.
        """
        kernels = _load_kernels(config, device)
        try:
            return cls(config, path, dtype, device, num_shards, kernels)
        except UnfaithfulError as error:
            if kernels is None or config.quantize is not None:
                raise
            # Each shard sees this, for the logits are the same in all of them.
            logger.warning("Without the CPU kernels (slower), for with them %s", error)
        return cls(config, path, dtype, device, num_shards, None)

    def _settled(self, attention: str, config: EngineConfig) -> str:
        """The back end that serves faithfully: this one, or else sdpa in varlen's place."""
        is_quantized = config.quantize is not None
        try:
            self._probe(attention, is_quantized=is_quantized)
        except (RuntimeError, UnfaithfulError) as error:
            if attention != "varlen" or config.attention == "varlen":
                raise
            logger.warning("Attention by sdpa, which is slower, for with varlen: %s", error)
            attention = "sdpa"
            self._probe(attention, is_quantized=is_quantized)
        return attention

    def _probe(self, attention: str, *, is_quantized: bool) -> None:
        probe_logits(
            self.model,
            self.layers,
            attention,
            self.vocabulary,
            self._references,
            self.kernels,
            is_quantized=is_quantized,
        )


def _load_kernels(config: EngineConfig, device: torch.device) -> Kernels | None:
    kernels = None
    if device.type == "cpu" and not config.disable_custom_kernels:
        kernels = Kernels.load(torch.get_num_threads())
        kernels = None if kernels is None else choose_tiles(kernels)
    if config.quantize is not None and kernels is None:
        raise LoadError(f"`quantize` {config.quantize} needs the CPU kernels, and there are none")
    return kernels
