"""Constraints by llguidance: JSON Schema, regular expressions, choices, Lark and GBNF grammars."""

from __future__ import annotations

from tokenloom_engine.constraints.backends.llguidance.backend import LlguidanceBackend
from tokenloom_engine.constraints.base import ConstraintBackend, TokenizerFacts
from tokenloom_engine.constraints.config import ConstraintConfig
from tokenloom_engine.constraints.latency import Latency


def create_backend(
    tokenizer: TokenizerFacts, config: ConstraintConfig, latency: Latency
) -> ConstraintBackend:
    """See `backends`."""
    return LlguidanceBackend(tokenizer, config, latency)
