"""The settings of the other two parts, made from the server's."""

from __future__ import annotations

from tokenloom_engine.config import EngineConfig
from tokenloom_engine.constraints.config import ConstraintConfig
from tokenloom_router.config import RouterConfig
from tokenloom_server.bundled_model import bundled_model_path
from tokenloom_server.settings import Settings


def engine_config(settings: Settings) -> EngineConfig:
    """The engine's. Raises BundledModelError if no model is named and none is installed."""
    return EngineConfig(
        model_id=settings.model_id or bundled_model_path(),
        revision=settings.revision,
        dtype=settings.dtype,
        device=settings.device,
        num_shard=settings.num_shard or (None if settings.sharded else 1),
        replicas=settings.replicas,
        quantize=settings.quantize,
        rope_scaling=settings.rope_scaling,
        rope_factor=settings.rope_factor,
        trust_remote_code=settings.trust_remote_code,
        attention=settings.attention,
        cuda_graphs=settings.cuda_graphs or None,
        disable_custom_kernels=settings.disable_custom_kernels,
        num_threads=settings.num_threads,
        nice=settings.engine_nice,
        cuda_memory_fraction=settings.cuda_memory_fraction,
        max_total_tokens=settings.max_total_tokens,
        max_batch_total_tokens=settings.max_batch_total_tokens,
        max_batch_prefill_tokens=settings.max_batch_prefill_tokens,
        max_batch_size=settings.max_batch_size,
        max_waiting_tokens=settings.max_waiting_tokens,
        waiting_served_ratio=settings.waiting_served_ratio,
        block_size=settings.block_size,
        prefix_caching=not settings.disable_prefix_caching,
        speculate=settings.speculate,
        watermark_gamma=settings.watermark_gamma,
        watermark_delta=settings.watermark_delta,
        json_output=settings.json_output,
        log_level=settings.log_level,
        constraints=constraint_config(settings),
    )


def router_config(settings: Settings) -> RouterConfig:
    """The router's."""
    return RouterConfig(
        max_concurrent_requests=settings.max_concurrent_requests,
        max_best_of=settings.max_best_of,
        max_stop_sequences=settings.max_stop_sequences,
        max_top_n_tokens=settings.max_top_n_tokens,
        max_input_tokens=settings.max_input_tokens,
        max_total_tokens=settings.max_total_tokens,
        validation_workers=settings.validation_workers,
        tokenizer_config_path=settings.tokenizer_config_path,
        generation_config=settings.generation_config == "auto",
        parses_control_tokens=settings.chat_special_tokens == "parse",
        engine_stall_timeout=settings.engine_stall_timeout,
        disable_grammar_support=settings.disable_grammar_support,
        disable_forced_tokens=settings.disable_forced_tokens,
        constraints=constraint_config(settings),
    )


def constraint_config(settings: Settings) -> ConstraintConfig:
    """Both parts' settings of constraints."""
    return ConstraintConfig(
        backends=settings.backends,
        max_bytes=settings.max_grammar_bytes,
        max_depth=settings.max_grammar_depth,
        timeout_seconds=settings.grammar_timeout,
        max_items=settings.max_grammar_items,
        max_items_in_row=settings.max_grammar_items_in_row,
    )
