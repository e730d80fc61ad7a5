"""The engine: forwards over packed batches, with a constraint engine for each sequence."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokenloom_engine.llm import LLM

__all__ = ["LLM"]


def __getattr__(name: str) -> Any:  # noqa: ANN401
    """Load `LLM` when it is asked for: it brings torch, which the front process does not load."""
    if name != "LLM":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from tokenloom_engine.llm import LLM

    return LLM
