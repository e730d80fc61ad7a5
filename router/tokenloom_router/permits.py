"""Permits: how many sequences may be queued or running at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tokenloom_router.errors import OverloadedError


class Permits:
    """A counting semaphore that never waits: a full server says so at once."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._in_use = 0

    @property
    def in_use(self) -> int:
        """Permits that are held now."""
        return self._in_use

    @contextmanager
    def acquire(self, count: int = 1) -> Iterator[None]:
        """Hold `count` permits, all or none. Raise OverloadedError if they are not free."""
        if self._in_use + count > self._limit:
            raise OverloadedError
        self._in_use += count
        try:
            yield
        finally:
            self._in_use -= count
