"""Loads the model, owns its KV cache, and turns batches into logits."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import torch

from tokenloom_engine.attention import (
    create_attention,
    default_block_size,
)
from tokenloom_engine.attention.base import AttentionBackend
from tokenloom_engine.attention.varlen import VarlenAttention
from tokenloom_engine.batch import Batch
from tokenloom_engine.cache import prepare_cache
from tokenloom_engine.cgroup import usable_cores
from tokenloom_engine.checkpoint import Checkpoint, custom_code, resolve_checkpoint
from tokenloom_engine.config import EngineConfig
from tokenloom_engine.errors import LoadError
from tokenloom_engine.graphs import DEFAULT_SIZES, DecodeGraphs
from tokenloom_engine.memory import memory_for_kv_cache
from tokenloom_engine.messages import ModelInfo
from tokenloom_engine.model import Model, pick_device, pick_dtype
from tokenloom_engine.served_model import ServedModel
from tokenloom_engine.shards import Shards, check_divisible, count_shards
from tokenloom_engine.tokenizer_file import keep_tokenizer

logger = logging.getLogger(__name__)

DEFAULT_MAX_POSITIONS = 2048
DEFAULT_PREFILL_TOKENS = {"cpu": 256, "cuda": 4096}
"""A chunk that holds up the streams beside it for a fraction of a second."""
MAX_AUTO_SEQUENCES = 128
"""`max_batch_total_tokens` auto: no more than so many sequences of full length."""
TORCH_THREADS = torch.get_num_threads()
"""What torch takes by itself. An engine may have set it to one since, and another one come now."""


class ModelRunner:
    """A loaded model behind `get_logits`."""

    def __init__(
        self,
        config: EngineConfig,
        shards: Shards | None = None,
        on_lost_shard: Callable[[], None] = lambda: None,
    ) -> None:
        """Load. Raises LoadError with one line for the operator.

        `shards`: those that this process is one of. Without them, it starts the others if
        `config` wants several; `on_lost_shard` is called in another thread when one ends.
        """
        started = time.perf_counter()
        device = pick_device(config.device)
        num_shards = count_shards(config, device) if shards is None else shards.count
        cores = min(TORCH_THREADS, usable_cores())
        share = cores // (num_shards * config.replicas)
        torch.set_num_threads(config.num_threads or max(1, share))
        dtype = pick_dtype(config.dtype, device)
        if shards is None:
            prepare_cache()
        checkpoint = resolve_checkpoint(config.model_id, config.revision, dtype)
        if not config.trust_remote_code and (files := custom_code(checkpoint.path)):
            logger.warning(
                "The model's own code is not run (%s): transformers' is, if it has the "
                "architecture. `trust_remote_code` runs it",
                ", ".join(files),
            )
        logger.info("Loading %s as %s on %s", config.model_id, dtype, device)
        if shards is None and num_shards > 1:
            # The first so that the others find the model as a folder.
            check_divisible(checkpoint.path, num_shards, trust_remote_code=config.trust_remote_code)
            shards = Shards.lead(config, checkpoint.path, num_shards, device, on_lost_shard)
        self._shards = shards
        self._device, self._dtype = device, dtype
        served = ServedModel.load(config, checkpoint.path, dtype, device, num_shards)
        self.model = served.model
        self.kernels = served.kernels
        """Those of the CPU, where they compute the model."""
        self.tokenizer_json, self.vocabulary = served.tokenizer_json, served.vocabulary
        if self.model.is_batch_invariant:
            # The kernels share out the work. What is left to torch is short, and its threads would
            # wait for each other longer than they compute where others use the cores too.
            torch.set_num_threads(1)
        self._make_cache(config, served, num_shards)
        self.info = self._describe(config, checkpoint, served, num_shards)
        num_tokens = self.info.max_batch_total_tokens
        logger.info(
            "KV cache: %d tokens in %d blocks, %.2f GB; loaded in %.1f s",
            num_tokens,
            self.num_blocks,
            num_tokens * self._bytes_per_token / 1e9,
            time.perf_counter() - started,
        )

    def _make_cache(self, config: EngineConfig, served: ServedModel, num_shards: int) -> None:
        """Make the attention back end with its blocks, for as many tokens as there is room for."""
        model = self.model
        self.block_size = config.block_size or default_block_size(served.attention)
        self._bytes_per_token = sum(layer.bytes_per_token(self._dtype) for layer in served.layers)
        self._max_positions = model.context_length or DEFAULT_MAX_POSITIONS
        self.num_blocks = _num_blocks(
            config,
            self.block_size,
            self._device,
            self._bytes_per_token,
            self._max_positions,
            num_shards,
        )
        if self._shards is not None:
            self.num_blocks = self._shards.least(self.num_blocks)
        self.backend = create_attention(
            served.attention,
            served.layers,
            self.num_blocks,
            self.block_size,
            self._dtype,
            self._device,
            self.kernels,
        )
        model.bind(self.backend)
        longest = config.max_total_tokens or self._max_positions
        self.graphs = _record_graphs(config, model, self.backend, longest)

    def _describe(
        self, config: EngineConfig, checkpoint: Checkpoint, served: ServedModel, num_shards: int
    ) -> ModelInfo:
        """What the front is told."""
        model = self.model
        return ModelInfo(
            model_id=config.model_id,
            model_path=str(checkpoint.path),
            tokenizer_file=keep_tokenizer(self.tokenizer_json),
            sha=checkpoint.sha,
            model_type=model.config.model_type,
            dtype=str(self._dtype).removeprefix("torch."),
            device=self._device.type,
            attention=served.attention,
            vocab_size=served.vocab_size,
            eos_token_ids=sorted(served.eos_token_ids),
            max_position_embeddings=self._max_positions,
            max_batch_total_tokens=self.num_blocks * self.block_size,
            block_size=self.block_size,
            max_batch_prefill_tokens=config.max_batch_prefill_tokens
            or DEFAULT_PREFILL_TOKENS[self._device.type],
            max_batch_size=config.max_batch_size,
            num_parameters=served.num_parameters,
            num_shards=num_shards,
            kv_bytes_per_token=self._bytes_per_token,
        )

    def get_logits(self, batch: Batch) -> torch.Tensor:
        """One forward. Returns [num_logits, vocab_size], row after row."""
        if self._shards is None:
            return self._forward(batch)
        self._shards.send(batch.rows, self.block_size)
        try:
            return self._forward(batch)
        except Exception:
            self._shards.give_up()
            raise

    def close(self) -> None:
        """Let other shards end."""
        if self._shards is not None:
            self._shards.close()

    def _forward(self, batch: Batch) -> torch.Tensor:
        size = None if self.graphs is None else self.graphs.size_for(batch.rows)
        if self.graphs is not None and size is not None:
            return self.graphs.logits(batch.rows, size)
        self.backend.prepare(batch)
        logits = self.model.forward(
            batch.input_ids, batch.position_ids, batch.logit_positions, batch.is_long
        )
        return logits[: batch.num_logits]


def _record_graphs(
    config: EngineConfig, model: Model, backend: AttentionBackend, longest: int
) -> DecodeGraphs | None:
    sizes = DEFAULT_SIZES if config.cuda_graphs is None else config.cuda_graphs
    sizes = tuple(size for size in sizes if size)
    is_alone = model.device.type == "cuda" and model.num_shards == 1
    if isinstance(backend, VarlenAttention) and is_alone and sizes:
        graphs = DecodeGraphs(model, backend, sizes, longest)
        logger.info("CUDA graphs of decode forwards of %s rows", graphs.sizes)
        return graphs
    if config.cuda_graphs and sizes:
        logger.warning(
            "--cuda-graphs has no effect: only attention by varlen, on one GPU, has them"
        )
    return None


def _num_blocks(
    config: EngineConfig,
    block_size: int,
    device: torch.device,
    bytes_per_token: int,
    max_positions: int,
    num_shards: int,
) -> int:
    longest = config.max_total_tokens or max_positions
    tokens = config.max_batch_total_tokens
    if tokens is None:
        # Shards and replicas on a CPU share its memory.
        sharing = num_shards * config.replicas if device.type == "cpu" else 1
        fits = memory_for_kv_cache(device) // sharing // bytes_per_token
        tokens = min(fits, MAX_AUTO_SEQUENCES * longest)
    num_blocks = tokens // block_size
    if config.max_total_tokens is not None and num_blocks * block_size < longest:
        raise LoadError(f"Not enough memory to handle `max_total_tokens={longest}`")
    if num_blocks < 1:
        raise LoadError(f"the KV cache has room for {tokens} tokens, less than one block")
    return num_blocks
