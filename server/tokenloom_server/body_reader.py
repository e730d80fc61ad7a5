"""Reads request bodies, the large ones beside the event loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

import anyio

LARGE_BYTES = 16_384
"""What a smaller body takes is less than what streams notice."""

T = TypeVar("T")


class BodyReader(Generic[T]):
    """Reads the bodies of one route, one large body at a time."""

    def __init__(self, parse: Callable[[bytes], T]) -> None:
        """`parse` is called in the event loop's thread or in another one."""
        self._parse = parse
        self._turns = anyio.CapacityLimiter(1)

    async def read(self, body: bytes) -> T:
        """What `parse` makes of it, or raises."""
        if len(body) < LARGE_BYTES:
            return self._parse(body)
        return await anyio.to_thread.run_sync(self._parse, body, limiter=self._turns)
