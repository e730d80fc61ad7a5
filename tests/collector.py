"""An OpenTelemetry collector as far as a test needs one: takes spans over gRPC or HTTP."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import grpc  # type: ignore[import-untyped]
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span


@dataclass
class Collector:
    """What has arrived."""

    endpoint: str = ""
    spans: list[Span] = field(default_factory=list)
    services: set[str] = field(default_factory=set)

    def take(self, request: ExportTraceServiceRequest) -> None:
        for resource in request.resource_spans:
            self.services.add(attributes(resource.resource)["service.name"])
            for scope in resource.scope_spans:
                self.spans += scope.spans


def attributes(owner: Any) -> dict[str, Any]:  # noqa: ANN401 (spans, resources, events)
    """The attributes of a span or resource."""
    return {pair.key: _value(pair.value) for pair in owner.attributes}


def _value(value: AnyValue) -> Any:  # noqa: ANN401
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(item) for item in value.array_value.values]
    return getattr(value, kind) if kind else None


@contextmanager
def grpc_collector() -> Iterator[Collector]:
    """One that listens for gRPC."""
    collector = Collector()

    class Service(trace_service_pb2_grpc.TraceServiceServicer):
        def Export(
            self,
            request: ExportTraceServiceRequest,
            context: object,
        ) -> ExportTraceServiceResponse:
            collector.take(request)
            return ExportTraceServiceResponse()

    server = grpc.server(ThreadPoolExecutor(2))
    add_service = trace_service_pb2_grpc.add_TraceServiceServicer_to_server
    add_service(Service(), server)  # type: ignore[no-untyped-call]
    collector.endpoint = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield collector
    finally:
        server.stop(None).wait()


@contextmanager
def http_collector() -> Iterator[Collector]:
    """One that listens for HTTP."""
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.headers["content-encoding"]:
                self.send_error(415)
                return
            collector.take(ExportTraceServiceRequest.FromString(body))
            self.send_response(200)
            self.send_header("content-type", "application/x-protobuf")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        collector.endpoint = f"http://127.0.0.1:{server.server_port}/v1/traces"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield collector
        finally:
            server.shutdown()
