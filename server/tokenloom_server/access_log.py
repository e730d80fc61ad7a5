"""The access log: one line for each HTTP request, when its response ends."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from starlette.types import Scope

from tokenloom_router.request import Timings
from tokenloom_router.request_metrics import RequestRecord
from tokenloom_server.http_labels import method_label, route_label

MESSAGE = "Request finished"
DECIMALS = 6
"""Of times in seconds."""
REFUSED_STATUS = "refused_status"
"""Key in `scope["state"]`: the status that the connection itself sent, not the application."""

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class AccessRecord:
    """One HTTP request, with all sequences of its prompts together."""

    received_at: float
    status: int | None = None
    """None if the client left before the response began."""
    is_validated: bool = False
    """Whether one of its prompts passed validation."""
    input_tokens: int = 0
    output_tokens: int = 0
    queue_seconds: float | None = None
    """The longest of its prompts; None if none joined the batch."""
    first_token_at: float | None = None
    """The first of all its sequences."""
    error_type: str | None = None

    def add(self, record: RequestRecord, timings: Timings) -> None:
        """Add a prompt that has ended."""
        if record.request is not None:
            self.is_validated = True
            self.input_tokens += record.request.input_length
        self.output_tokens += timings.num_tokens
        if timings.started_at:
            self.queue_seconds = max(self.queue_seconds or 0.0, timings.queue_seconds)
        if timings.first_token_at:
            at = timings.first_token_at
            self.first_token_at = min(self.first_token_at or at, at)
        if record.error is not None:
            self.error_type = self.error_type or record.error.error_type
        elif not record.finishes:
            self.error_type = self.error_type or "dropped"

    def fields(self, now: float) -> Iterator[tuple[str, object]]:
        """The fields of its line that apply, without method and route."""
        if self.status is not None:
            yield "status", self.status
        if self.is_validated:
            yield "input_tokens", self.input_tokens
            yield "output_tokens", self.output_tokens
        if self.queue_seconds is not None:
            yield "queue_seconds", round(self.queue_seconds, DECIMALS)
        if self.first_token_at is not None:
            yield "first_token_seconds", round(self.first_token_at - self.received_at, DECIMALS)
        yield "total_seconds", round(now - self.received_at, DECIMALS)
        if self.error_type is not None:
            yield "error_type", self.error_type


_record: ContextVar[AccessRecord | None] = ContextVar("access_record", default=None)


class AccessLog:
    """Logs HTTP requests, and observes what their prompts come to."""

    @contextmanager
    def request(self, scope: Scope) -> Iterator[AccessRecord]:
        """The record of an HTTP request, which is logged at the end of the block."""
        record = AccessRecord(time.monotonic())
        token = _record.set(record)
        try:
            yield record
        except Exception:
            record.status = record.status or 500
            record.error_type = record.error_type or "internal"
            raise
        finally:
            _record.reset(token)
            record.status = scope.get("state", {}).get(REFUSED_STATUS, record.status)
            fields = dict(record.fields(time.monotonic()))
            _log({"method": method_label(scope), "route": route_label(scope), **fields})

    def received(self) -> Callable[[RequestRecord, Timings], None]:
        """See RequestObserver."""
        record = _record.get() or AccessRecord(time.monotonic())
        return record.add

    def refused(self, status: int) -> None:
        """Log a request that the connection refused before its header was complete."""
        _log({"status": status})


def _log(fields: dict[str, object]) -> None:
    logger.info(MESSAGE, extra=fields)
