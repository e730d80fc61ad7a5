"""The id of the request that a task or thread works for, which its log lines carry."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

request_id: ContextVar[str | None] = ContextVar("request_id", default=None)
"""None outside of requests."""


@contextmanager
def working_for(id: str | None) -> Iterator[None]:
    """Set the request id for the log lines of the block."""
    token = request_id.set(id)
    try:
        yield
    finally:
        request_id.reset(token)
