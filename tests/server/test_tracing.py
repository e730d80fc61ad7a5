"""Spans, as they arrive at a collector."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import httpx
import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from tests.collector import Collector, attributes, grpc_collector, http_collector
from tests.server.running import script
from tests.server.test_serve import rest, started, url_of
from tokenloom_engine.messages import SequenceOutput

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
STATIONS = ["validation", "queue", "prefill", "decode"]


def body(inputs: str, **parameters: Any) -> dict[str, Any]:  # noqa: ANN401
    return {"inputs": inputs, "parameters": parameters}


def children(collector: Collector, parent: Span) -> list[Span]:
    found = [span for span in collector.spans if span.parent_span_id == parent.span_id]
    return sorted(found, key=lambda span: STATIONS.index(span.name))


@pytest.mark.parametrize("collecting", [grpc_collector, http_collector])
def test_the_spans_of_a_request(
    tokenizer_file: Path, collecting: Callable[[], AbstractContextManager[Collector]]
) -> None:
    with collecting() as collector:
        given = {"otlp_endpoint": collector.endpoint, "otlp_service_name": "mine"}
        with started(tokenizer_file, **given) as process:
            with httpx.Client(base_url=url_of(process)) as client:
                before = time.time_ns()
                client.post(
                    "/generate",
                    json=body("abc", max_new_tokens=4),
                    headers={"traceparent": f"00-{TRACE}-{PARENT}-01"},
                ).raise_for_status()
                after = time.time_ns()
                client.post("/generate_stream", json=body("a", max_new_tokens=2))
                failing = body("a", stop=[script(SequenceOutput(0, error="the row is bad"))])
                assert client.post("/generate", json=failing).status_code == 424
                assert client.post("/generate", json=body("")).status_code == 422
                client.get("/health").raise_for_status()
            process.send_signal(signal.SIGTERM)
            status, written = rest(process)
    assert (status, "Traceback" in written) == (0, False)
    assert collector.services == {"mine"}
    whole, streamed, failed, invalid = sorted(
        (span for span in collector.spans if span.kind == Span.SPAN_KIND_SERVER),
        key=lambda span: span.start_time_unix_nano,
    )
    assert [span.name for span in (whole, streamed)] == ["POST /generate", "POST /generate_stream"]
    assert (whole.trace_id.hex(), whole.parent_span_id.hex()) == (TRACE, PARENT)
    assert streamed.trace_id != whole.trace_id
    assert not streamed.parent_span_id
    expected = {
        "http.request.method": "POST",
        "http.route": "/generate",
        "url.path": "/generate",
        "http.response.status_code": 200,
        "gen_ai.usage.input_tokens": 3,
        "gen_ai.usage.output_tokens": 4,
        "gen_ai.response.finish_reasons": ["length"],
    }
    assert attributes(whole) == expected

    stations = children(collector, whole)
    assert [span.name for span in stations] == STATIONS
    assert {span.trace_id for span in stations} == {whole.trace_id}
    times = [(span.start_time_unix_nano, span.end_time_unix_nano) for span in stations]
    assert all(start <= end for start, end in times)
    assert [end for _, end in times[:-1]] == [start for start, _ in times[1:]]
    assert before < whole.start_time_unix_nano < times[0][0] + 1e6
    assert times[-1][1] < after
    assert attributes(stations[2]) == {"gen_ai.usage.input_tokens": 3}
    assert attributes(stations[3])["gen_ai.response.finish_reasons"] == ["length"]
    assert [span.name for span in children(collector, streamed)] == STATIONS

    assert failed.status.code == Status.STATUS_CODE_ERROR
    assert failed.status.message == "Request failed during generation: the row is bad"
    assert [span.name for span in children(collector, failed)] == ["validation", "queue"]
    (validation,) = children(collector, invalid)
    assert validation.name == "validation"
    assert validation.status.code == Status.STATUS_CODE_ERROR
    assert "`inputs` cannot be empty" in validation.status.message
    assert invalid.status.code == Status.STATUS_CODE_UNSET  # the server is not to blame
    assert attributes(invalid)["http.response.status_code"] == 422


def test_a_collector_that_is_not_there_holds_up_nobody(tokenizer_file: Path) -> None:
    with started(tokenizer_file, otlp_endpoint="http://127.0.0.1:9") as process:
        with httpx.Client(base_url=url_of(process)) as client:
            client.post("/generate", json=body("abc", max_new_tokens=4)).raise_for_status()
        process.send_signal(signal.SIGTERM)
        status, written = rest(process)
    assert (status, "Traceback" in written) == (0, False)
