"""OpenTelemetry spans of requests. Loaded only where a collector is named."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from importlib.metadata import version
from urllib.parse import urlsplit

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.trace import Span, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue

from tokenloom_router.errors import OverloadedError, ValidationError
from tokenloom_router.request import Timings
from tokenloom_router.request_metrics import RequestRecord

HTTP_PORT = 4318
HTTP_PATH = "/v1/traces"
EXPORT_SECONDS = 5
"""How long an export may take: also what an unreachable collector can delay the server's end."""
PROMPT_TOKENS = "gen_ai.usage.input_tokens"
GENERATED_TOKENS = "gen_ai.usage.output_tokens"
FINISH_REASONS = "gen_ai.response.finish_reasons"
CLIENTS_FAULTS = (ValidationError, OverloadedError)
"""Errors that do not make the whole request's span one of an error: it was answered well."""


@dataclass(slots=True)
class _Usage:
    """What the sequences of one HTTP request came to, all together."""

    prompt_tokens: int = 0
    generated_tokens: int = 0
    finish_reasons: list[str] = field(default_factory=list)
    error: str | None = None


_usage: ContextVar[_Usage | None] = ContextVar("usage", default=None)


class Tracing:
    """Makes a span of each HTTP request, and in it those of the stations that it passes.

    Spans go to the collector in a thread of its own. What is left is sent at the interpreter's end.
    """

    def __init__(self, endpoint: str, service_name: str) -> None:
        resource = Resource.create(
            {"service.name": service_name, "service.version": version("tokenloom")}
        )
        provider = TracerProvider(resource=resource)  # not the process's: libraries do not join in
        provider.add_span_processor(BatchSpanProcessor(_exporter(endpoint)))
        self._tracer = provider.get_tracer("tokenloom")
        self._propagator = TraceContextTextMapPropagator()

    @contextmanager
    def request(self, method: str, path: str, headers: Mapping[str, str]) -> Iterator[Span]:
        """The span of an HTTP request, in the trace that its `traceparent` names."""
        usage = _Usage()
        token = _usage.set(usage)
        try:
            with self._tracer.start_as_current_span(
                method,
                self._propagator.extract(headers),
                kind=SpanKind.SERVER,
                attributes={"http.request.method": method, "url.path": path},
            ) as span:
                yield span
                if usage.prompt_tokens:
                    span.set_attributes(_attributes(usage))
                if usage.error is not None:
                    span.set_status(Status(StatusCode.ERROR, usage.error))
        finally:
            _usage.reset(token)

    def received(self) -> Callable[[RequestRecord, Timings], None]:
        """Note whose request begins in this task. Call what it returns when it has ended."""
        context = trace.set_span_in_context(trace.get_current_span())
        usage = _usage.get()

        def ended(record: RequestRecord, timings: Timings) -> None:
            own = _usage_of(record)
            if usage is not None:
                usage.prompt_tokens += own.prompt_tokens
                usage.generated_tokens += own.generated_tokens
                usage.finish_reasons += own.finish_reasons
                if not isinstance(record.error, CLIENTS_FAULTS) and record.error is not None:
                    usage.error = own.error
            self._stations(context, own, timings)

        return ended

    def _stations(self, context: Context, usage: _Usage, timings: Timings) -> None:
        """A span of each station that the request came to; the last one has its error."""
        now = time.monotonic()
        ns_at_zero = time.time_ns() - int(now * 1e9)
        for name, start, end in _times(timings):
            span = self._tracer.start_span(name, context, start_time=ns_at_zero + int(start * 1e9))
            if name == "prefill":
                span.set_attribute(PROMPT_TOKENS, usage.prompt_tokens)
            if name == "decode":
                span.set_attributes(_attributes(usage))
            if not end and usage.error is not None:
                span.set_status(Status(StatusCode.ERROR, usage.error))
            span.end(ns_at_zero + int((end or now) * 1e9))


def _times(timings: Timings) -> Iterator[tuple[str, float, float]]:
    """The stations in order, with when they began and ended; 0 is not yet."""
    marks = (
        timings.received_at,
        timings.validated_at,
        timings.started_at,
        timings.first_token_at,
        timings.finished_at,
    )
    names = ("validation", "queue", "prefill", "decode")
    for name, start, end in zip(names, marks, marks[1:], strict=False):
        yield name, start, end
        if not end:
            return


def _usage_of(record: RequestRecord) -> _Usage:
    usage = _Usage(record.request.input_length if record.request else 0)
    usage.generated_tokens = sum(finish.generated_tokens for finish in record.finishes)
    usage.finish_reasons += [finish.reason for finish in record.finishes]
    if record.error is not None:
        usage.error = str(record.error)
    elif not record.finishes:
        usage.error = "the client left"
    return usage


def _attributes(usage: _Usage) -> dict[str, AttributeValue]:
    return {
        PROMPT_TOKENS: usage.prompt_tokens,
        GENERATED_TOKENS: usage.generated_tokens,
        FINISH_REASONS: usage.finish_reasons,
    }


def _exporter(endpoint: str) -> SpanExporter:
    """By gRPC, as TGI; by HTTP where the address has a path or HTTP's own port."""
    parts = urlsplit(endpoint)
    if parts.path not in ("", "/"):
        return HttpExporter(endpoint, timeout=EXPORT_SECONDS)
    if parts.port == HTTP_PORT:
        return HttpExporter(endpoint.rstrip("/") + HTTP_PATH, timeout=EXPORT_SECONDS)
    return GrpcExporter(endpoint, timeout=EXPORT_SECONDS)
