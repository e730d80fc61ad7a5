"""A token, and what the logits before it said of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Alternative(NamedTuple):
    """One of the most probable tokens at a position."""

    id: int
    logprob: float
    masked: bool


@dataclass(slots=True)
class Choice:
    """A token with what the logits before it said of it."""

    id: int
    logprob: float | None = None
    top: list[Alternative] | None = None
    """The most probable tokens, best first."""
    temperature: float | None = None
    """That at which it is drawn, if the constraint says so."""
    is_forced: bool = False
    """Whether it is drawn though nothing else could follow: that was known too late."""
