"""The limits that requests are held to, once the model is known."""

from __future__ import annotations

from dataclasses import dataclass

from tokenloom_engine.messages import ModelInfo
from tokenloom_router.config import RouterConfig
from tokenloom_router.errors import EngineStartError


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one request may ask for."""

    max_concurrent_requests: int
    max_best_of: int
    max_stop_sequences: int
    max_top_n_tokens: int
    max_input_tokens: int
    max_total_tokens: int
    vocab_size: int
    logits_processors: tuple[str, ...] = ()
    """Names of those that are installed."""

    @classmethod
    def resolve(cls, config: RouterConfig, model: ModelInfo) -> Limits:
        """Fill in what is left open. Raise EngineStartError if the model cannot hold it."""
        max_total_tokens = _max_total_tokens(config, model)
        return cls(
            max_concurrent_requests=config.max_concurrent_requests,
            max_best_of=config.max_best_of,
            max_stop_sequences=config.max_stop_sequences,
            max_top_n_tokens=config.max_top_n_tokens,
            max_input_tokens=_max_input_tokens(config, max_total_tokens),
            max_total_tokens=max_total_tokens,
            vocab_size=model.vocab_size,
            logits_processors=tuple(model.logits_processors),
        )


def _max_total_tokens(config: RouterConfig, model: ModelInfo) -> int:
    given = config.max_total_tokens
    if given is None:
        return min(model.max_batch_total_tokens, model.max_position_embeddings)
    if given > model.max_batch_total_tokens:
        raise EngineStartError(
            "`max_total_tokens` must be <= `max_batch_total_tokens`. "
            f"Given: {given} and {model.max_batch_total_tokens}"
        )
    if given > model.max_position_embeddings:
        raise EngineStartError(
            "`max_total_tokens` must be <= the model's context, which its config.json says. "
            f"Given: {given} and {model.max_position_embeddings}. `rope_scaling` there, or "
            "`rope_factor` here, lengthens it"
        )
    return given


def _max_input_tokens(config: RouterConfig, max_total_tokens: int) -> int:
    given = config.max_input_tokens
    if given is None:
        given = max_total_tokens - 1
    if not 0 < given < max_total_tokens:
        raise EngineStartError(
            "`max_input_tokens` must be > 0 and < `max_total_tokens`. "
            f"Given: {given} and {max_total_tokens}"
        )
    return given
