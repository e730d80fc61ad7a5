"""What all bodies of one answer have in common."""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Literal

SYSTEM_FINGERPRINT = f"tokenloom-{version('tokenloom')}"


@dataclass(frozen=True, slots=True)
class Envelope:
    """Names an answer."""

    prefix: Literal["cmpl", "chatcmpl", "resp"]
    model: str
    request_id: str | None = None
    created: int = field(default_factory=lambda: int(time.time()))
    number: str = field(default_factory=lambda: secrets.token_hex(12))

    @property
    def id(self) -> str:
        """The answer's own. What a client names it by stands in it, but does not make it."""
        given = f"{self.request_id}-" if self.request_id is not None else ""
        return f"{self.prefix}-{given}{self.number}"
