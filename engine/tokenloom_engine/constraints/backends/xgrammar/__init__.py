"""The backend over xgrammar, an optional dependency."""

from __future__ import annotations

from tokenloom_engine.constraints.backends.xgrammar.backend import XgrammarBackend
from tokenloom_engine.constraints.base import ConstraintBackend, TokenizerFacts
from tokenloom_engine.constraints.config import ConstraintConfig
from tokenloom_engine.constraints.latency import Latency


def create_backend(
    tokenizer: TokenizerFacts, config: ConstraintConfig, latency: Latency
) -> ConstraintBackend:
    """See `backends`. The limits of `config` that count a parser's items are llguidance's own."""
    return XgrammarBackend(tokenizer)
