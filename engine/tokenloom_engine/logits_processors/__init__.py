"""Custom logits processors: what a package must offer, and how each sequence gets its own.

A package names factories in the entry point group `tokenloom.logits_processors`; a request asks for
one by the name of its entry point. `docs/extending-constraints.md` walks through such a package,
which imports what it needs from here.
"""

from tokenloom_engine.logits_processors.base import (
    Args,
    LogitsProcessor,
    LogitsProcessorFactory,
    ProcessorContext,
    ProcessorError,
)
from tokenloom_engine.logits_processors.installed import GROUP, LogitsProcessors
from tokenloom_engine.logits_processors.lease import LeasedProcessor
from tokenloom_engine.logits_processors.pooling import PoolingFactory
from tokenloom_engine.logits_processors.transformers_processor import from_transformers

__all__ = [
    "GROUP",
    "Args",
    "LeasedProcessor",
    "LogitsProcessor",
    "LogitsProcessorFactory",
    "LogitsProcessors",
    "PoolingFactory",
    "ProcessorContext",
    "ProcessorError",
    "from_transformers",
]
