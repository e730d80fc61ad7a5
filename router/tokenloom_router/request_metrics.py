"""Metrics of requests, under TGI's names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from prometheus_client import CollectorRegistry, Counter, Histogram

from tokenloom_engine.messages import Finish
from tokenloom_router.errors import RequestError
from tokenloom_router.histogram import (
    COUNT_BUCKETS,
    SECONDS_BUCKETS,
    WeightedHistogram,
    linear_buckets,
)
from tokenloom_router.limits import Limits
from tokenloom_router.request import Timings, ValidRequest

_FAILURES = (
    "overloaded",
    "validation",
    "template",
    "constraint",
    "generation",
    "incomplete",
    "unavailable",
    "dropped",
)
_SHORT = {"incomplete_generation": "incomplete"}
"""Error types whose label is not their own name."""


@dataclass(slots=True)
class RequestRecord:
    """How a request went. Neither finishes nor error: the client left."""

    request: ValidRequest | None = None
    """Once it was validated."""
    finishes: list[Finish] = field(default_factory=list)
    """Of all its sequences, once all have one."""
    error: RequestError | None = None


class RequestObserver(Protocol):
    """Somebody else who follows what becomes of requests."""

    def received(self) -> Callable[[RequestRecord, Timings], None]:
        """Called in the task of a request that begins; the result is called when it has ended."""
        ...


class RequestMetrics:
    """Counts each request once, and its times and lengths at its end."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.observers: list[RequestObserver] = []
        """To be told of each request."""

        def seconds(name: str, help_text: str) -> Histogram:
            return Histogram(name, help_text, buckets=SECONDS_BUCKETS, registry=registry)

        def tokens(name: str, help_text: str) -> WeightedHistogram:
            return WeightedHistogram(name, help_text, COUNT_BUCKETS, registry)

        self._count = Counter("tgi_request_count", "Requests received.", registry=registry)
        self._success = Counter("tgi_request_success", "Requests answered.", registry=registry)
        self._failure = Counter(
            "tgi_request_failure", "Requests that failed.", ["err"], registry=registry
        )
        for err in _FAILURES:
            self._failure.labels(err)
        self._duration = seconds("tgi_request_duration", "Seconds from receipt to last token.")
        self._validation = seconds(
            "tgi_request_validation_duration", "Seconds from receipt until queued."
        )
        self._queue = seconds("tgi_request_queue_duration", "Seconds queued before the first step.")
        self._inference = seconds(
            "tgi_request_inference_duration", "Seconds from the first step to the last token."
        )
        self._time_per_token = seconds(
            "tgi_request_mean_time_per_token_duration", "Inference seconds per generated token."
        )
        self._time_to_first_token = seconds(
            "tgi_request_time_to_first_token_duration", "Seconds from receipt to first token."
        )
        self._input_length = tokens("tgi_request_input_length", "Tokens of the prompt.")
        self._max_new_tokens = tokens(
            "tgi_request_max_new_tokens", "Tokens that a request may generate."
        )
        self._generated_tokens = tokens("tgi_request_generated_tokens", "Tokens generated.")
        self._skipped_tokens = tokens(
            "tgi_request_skipped_tokens",
            "Tokens of a request without a step of their own: forced, or guessed right.",
        )

    def limited(self, limits: Limits) -> None:
        """Take the buckets of lengths from what requests may ask for, before the first one."""
        self._input_length.set_buckets(linear_buckets(limits.max_input_tokens))
        for metric in (self._max_new_tokens, self._generated_tokens):
            metric.set_buckets(linear_buckets(limits.max_total_tokens))

    @contextmanager
    def track(self, timings: Timings) -> Iterator[RequestRecord]:
        """Count a request as received now, and at the end of the block as what it became."""
        self._count.inc()
        record = RequestRecord()
        on_end = [observer.received() for observer in self.observers]
        try:
            yield record
        except RequestError as error:
            record.error = error
            raise
        finally:
            self._close(record, timings)
            for ended in on_end:
                ended(record, timings)

    def validated(self, request: ValidRequest) -> None:
        """Note the lengths of a request that passed validation."""
        self._input_length.observe(request.input_length)
        self._max_new_tokens.observe(request.stopping.max_new_tokens)

    def _close(self, record: RequestRecord, timings: Timings) -> None:
        if timings.first_token_at:
            self._time_to_first_token.observe(timings.first_token_at - timings.received_at)
        if record.error is not None:
            error_type = record.error.error_type
            self._failure.labels(_SHORT.get(error_type, error_type)).inc()
        elif not record.finishes:
            self._failure.labels("dropped").inc()
        else:
            self._succeeded(record.finishes, timings)

    def _succeeded(self, finishes: list[Finish], timings: Timings) -> None:
        self._success.inc()
        self._generated_tokens.observe(sum(finish.generated_tokens for finish in finishes))
        self._skipped_tokens.observe(sum(f.forced_tokens + f.accepted_tokens for f in finishes))
        self._duration.observe(timings.total_seconds)
        self._validation.observe(timings.validation_seconds)
        self._queue.observe(timings.queue_seconds)
        self._inference.observe(timings.inference_seconds)
        longest = max(finish.generated_tokens for finish in finishes)
        self._time_per_token.observe(timings.inference_seconds / max(1, longest))
