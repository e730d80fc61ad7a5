"""The open connections: how many there may be, and which one is closed to make room."""

from __future__ import annotations

import logging
import resource
import time
from contextlib import suppress
from typing import Protocol

import psutil

DEFAULT_CONNECTIONS = 4096
RESERVED_DESCRIPTORS = 64
"""Left to what is opened while the server runs: another engine process, helper processes, files."""
LOG_SECONDS = 60.0
"""The least time between two lines in the log about the limit."""

logger = logging.getLogger(__name__)


class Connection(Protocol):
    """A connection that can be closed to make room for another one."""

    def disconnect(self) -> None:
        """Close at once, and drop what was not sent."""


class Connections:
    """Counts the open connections, and closes one for each that exceeds the limit.

    It is the one that has waited longest for its client: for a request, or for the rest of one. A
    connection whose request is being answered is never closed. So a health probe finds room
    although a crowd of silent connections is there.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._num_open = 0
        self._waiting: dict[Connection, None] = {}
        """Those that wait for their client, the longest wait first."""
        self._logged_at = float("-inf")

    def add(self, connection: Connection) -> None:
        """Count a new connection. It is closed itself if all others are being answered."""
        self._num_open += 1
        self._waiting[connection] = None
        if self._num_open > self.limit:
            self._log()
            longest = next(iter(self._waiting))
            del self._waiting[longest]
            longest.disconnect()

    def remove(self, connection: Connection) -> None:
        """Forget a connection that is closed."""
        self._num_open -= 1
        self._waiting.pop(connection, None)

    def mark_busy(self, connection: Connection) -> None:
        """Keep a connection open: its request is whole, and is being answered."""
        self._waiting.pop(connection, None)

    def mark_waiting(self, connection: Connection) -> None:
        """Let a connection be closed again: its request is answered."""
        self._waiting.pop(connection, None)
        self._waiting[connection] = None

    def _log(self) -> None:
        now = time.monotonic()
        if now >= self._logged_at + LOG_SECONDS:
            self._logged_at = now
            logger.warning(
                "More than %d connections (--max-connections, `ulimit -n`): for each new one, the "
                "one that has waited longest for its client is closed",
                self.limit,
            )


def fit_connections(wanted: int) -> int:
    """Return how many of the wanted connections fit into the limit of open files, at least one.

    The soft limit is raised as far as they need and the hard limit allows.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    num_used = psutil.Process().num_fds()
    needed = num_used + RESERVED_DESCRIPTORS + wanted
    if soft != resource.RLIM_INFINITY and soft < needed:
        raised = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
            soft = raised
    if soft == resource.RLIM_INFINITY:
        return wanted
    free = soft - num_used
    return max(1, min(wanted, free - min(RESERVED_DESCRIPTORS, free // 2)))
