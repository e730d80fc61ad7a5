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
    def acquire(self, count: int = 1) -> Iterator[PermitLease]:
        """Hold `count` permits, all or none, until they are released, at the latest at the end.

        Raise OverloadedError if they are not free.
        """
        if self._in_use + count > self._limit:
            raise OverloadedError
        self._in_use += count
        lease = PermitLease(self, count)
        try:
            yield lease
        finally:
            lease.release(lease.num_held)

    def _release(self, count: int) -> None:
        self._in_use -= count


class PermitLease:
    """The permits of one request, a permit for each of its sequences."""

    def __init__(self, permits: Permits, count: int) -> None:
        self._permits = permits
        self.num_held = count

    def release(self, count: int = 1) -> None:
        """Return permits early: that many sequences have ended."""
        assert count <= self.num_held, "more permits are returned than were taken"
        self.num_held -= count
        self._permits._release(count)
