from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import httpx

from tests.server.running import RunningServer, running


def test_health(client: httpx.Client) -> None:
    for path in ("/health", "/ping", "/readyz", "/livez", "/"):
        assert (client.get(path).status_code, client.get(path).content) == (200, b"")
        assert client.head(path).status_code == 200


def test_what_can_be_got_has_a_head(client: httpx.Client) -> None:
    paths = client.get("/api-doc/openapi.json").json()["paths"]
    gets = {path.replace("{id}", "tgi") for path, verbs in paths.items() if "get" in verbs}
    assert {"/info", "/metrics", "/health", "/v1/models", "/v1/models/tgi"} <= gets
    for path in gets:
        head, get = client.head(path), client.get(path)
        assert (head.status_code, head.content) == (200, b"")
        assert head.headers.get("content-type") == get.headers.get("content-type")
    assert client.head("/v1/models/another").status_code == 404


def test_a_dead_engine_is_unhealthy_until_it_is_back(tokenizer_file: Path) -> None:
    with running(tokenizer_file) as server, httpx.Client(base_url=server.url) as client:
        pid = server.router.engine_pids[0]
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        while (response := client.get("/health")).status_code == 200:
            time.sleep(0.005)
        assert response.status_code == 503
        assert response.json() == {"error": "unhealthy", "error_type": "healthcheck"}
        assert int(response.headers["retry-after"]) > 0
        assert client.get("/ping").status_code == client.get("/readyz").status_code == 503
        assert client.get("/livez").status_code == 200
        refused = client.post("/generate", json={"inputs": "a"})
        assert refused.status_code == 503
        assert refused.json()["error_type"] == "unavailable"
        assert int(refused.headers["retry-after"]) > 0
        deadline = time.monotonic() + 10
        while client.get("/health").status_code != 200:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert client.post(
            "/generate", json={"inputs": "a", "parameters": {"max_new_tokens": 1}}
        ).is_success


def test_info(client: httpx.Client) -> None:
    info = client.get("/info").json()
    assert info["model_id"] == "scripted"
    assert info["max_concurrent_requests"] == 128
    assert (info["max_input_tokens"], info["max_total_tokens"]) == (2047, 2048)
    assert (info["max_best_of"], info["max_stop_sequences"]) == (2, 4)
    assert info["validation_workers"] == 2
    assert (info["replicas"], info["replicas_ready"]) == (1, 1)
    assert info["max_client_batch_size"] == 4
    assert info["router"] == "text-generation-router"


def test_metrics(client: httpx.Client, server: RunningServer) -> None:
    response = client.get("/metrics")
    assert response.headers["content-type"] == server.metrics.content_type
    assert "# TYPE tgi_request_count counter" in response.text
