"""The application on Ray Serve: two nodes, a replica on each, and what is lost when they end.

RAY_BIN is the folder of the programs `ray` and `serve`; their environment has tokenloom too.
`make test-deploy` sets it.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from tests.deploy.ray_cluster import WORKER, Cluster, cluster, wait_until

Json = dict[str, Any]
TEXT = "Once upon a time,"
CHAT = [{"role": "user", "content": "Tell a long story."}]
PARAMETERS = {"max_new_tokens": 24, "ignore_eos": True}
STREAMS: dict[str, tuple[str, Json]] = {
    "generate_stream": ("/generate_stream", {"inputs": TEXT, "parameters": PARAMETERS}),
    "root": ("/", {"inputs": TEXT, "parameters": PARAMETERS, "stream": True}),
    "invocations": ("/invocations", {"inputs": TEXT, "parameters": PARAMETERS, "stream": True}),
    "chat": ("/v1/chat/completions", {"messages": CHAT, "max_tokens": 24, "ignore_eos": True}),
    "completions": ("/v1/completions", {"prompt": TEXT, "max_tokens": 24, "ignore_eos": True}),
    "responses": ("/v1/responses", {"input": TEXT, "max_output_tokens": 24}),
}
ENDS = {"chat": "data: [DONE]", "completions": "data: [DONE]", "responses": "response.incomplete"}
"""Texts in the last event; "generated_text" elsewhere."""
CONCURRENCY = 16
SECONDS_AFTER = 5
SECONDS = 120


@pytest.fixture(scope="module")
def ray() -> Iterator[Cluster]:
    if "RAY_BIN" not in os.environ:
        pytest.skip("RAY_BIN is not set; `make test-deploy` sets it")
    with cluster() as running:
        running.deploy(2, {})
        yield running


def prompt(number: int) -> str:
    """A prompt of several blocks, which shares no prefix with those of other numbers."""
    return f"Chapter {number}. " + f"The {number}th traveller went to the sea. " * 40


@pytest.mark.parametrize("name", STREAMS)
def test_every_dialect_streams(ray: Cluster, name: str) -> None:
    path, body = STREAMS[name]
    body = {**body, "stream": True} if path.startswith("/v1/") else body
    with httpx.stream("POST", ray.url + path, json=body, timeout=SECONDS) as response:
        assert response.status_code == 200, response.read()
        assert response.headers["content-type"].startswith("text/event-stream")
        assert len(response.headers.get_list("x-request-id")) == 1
        chunks = list(response.iter_text())
    assert len(chunks) > 8, "the events come before the stream ends"
    assert ENDS.get(name, '"generated_text":"') in "".join(chunks)[-2000:]


@pytest.mark.parametrize(
    ("path", "status", "part"),
    [
        ("/generate", 422, "Failed to deserialize"),
        ("/v1/completions", 400, '"code":"missing_required_parameter"'),
        ("/v1/nothing", 404, '"code":"not_found"'),
        ("/nothing", 404, ""),
    ],
)
def test_errors_have_their_status_and_form(ray: Cluster, path: str, status: int, part: str) -> None:
    response = httpx.post(ray.url + path, json={}, timeout=SECONDS)
    assert response.status_code == status
    assert part in response.text


def test_a_large_body_is_refused_by_the_ingress(ray: Cluster) -> None:
    response = httpx.post(f"{ray.url}/v1/completions", content=b"x" * 2_000_001, timeout=SECONDS)
    assert response.status_code == 413
    assert response.json()["error"]["code"] == "too_large"
    assert "x-replica-id" not in response.headers


def test_prompts_go_where_their_prefix_is(ray: Cluster) -> None:
    before = sum(ray.metric("tgi_prefix_cache_hit_tokens").values())
    replicas = [Counter[str]() for _ in range(6)]
    for question in range(3):
        for number, counts in enumerate(replicas):
            body = {
                "inputs": f"{prompt(number)} Question {question}",
                "parameters": {"max_new_tokens": 1},
            }
            response = httpx.post(f"{ray.url}/generate", json=body, timeout=SECONDS)
            counts[response.headers["x-replica-id"]] += 1
    assert [len(counts) for counts in replicas] == [1] * 6
    assert sum(ray.metric("tgi_prefix_cache_hit_tokens").values()) > before + 6 * 2 * 200


def test_a_client_that_leaves_frees_its_sequence(ray: Cluster) -> None:
    body = {"inputs": TEXT, "parameters": {"max_new_tokens": 2000, "ignore_eos": True}}
    with httpx.stream("POST", f"{ray.url}/generate_stream", json=body, timeout=SECONDS) as stream:
        lines = stream.iter_lines()  # closes the connection when it is gone
        next(lines)
        assert stream.status_code == 200
        wait_until(lambda: sum(ray.metric("tgi_batch_current_size").values()) == 1, 20)
    wait_until(lambda: not any(ray.metric("tgi_batch_current_size").values()), 20)


def test_more_replicas_run_while_sequences_wait(ray: Cluster) -> None:
    engine = {
        "max_replicas": 2,
        "look_back_period_s": 2,
        "upscale_delay_s": 0,
        "downscale_delay_s": 3,
        "policy": {
            "policy_function": "tokenloom_ray.autoscaling:WaitingSequencesPolicy",
            "policy_kwargs": {"waiting_sequences": 2},
        },
    }
    ray.deploy(1, engine, max_batch_size=1)
    try:
        asyncio.run(_wait_for_two_replicas(ray))
        wait_until(lambda: len(ray.metric("tgi_queue_size")) == 1)
    finally:
        ray.deploy(2, {})


async def _wait_for_two_replicas(ray: Cluster) -> None:
    """Keep sequences waiting until a second replica runs."""
    body = {"inputs": TEXT, "parameters": {"max_new_tokens": 200, "ignore_eos": True}}

    async def work(http: httpx.AsyncClient) -> None:
        while True:
            await http.post(f"{ray.url}/generate", json=body)

    async with httpx.AsyncClient(timeout=SECONDS) as http:
        workers = [asyncio.create_task(work(http)) for _ in range(8)]
        try:
            await asyncio.to_thread(wait_until, lambda: len(ray.metric("tgi_queue_size")) == 2)
        finally:
            for worker in workers:
                worker.cancel()


@pytest.mark.parametrize("what", ["engine", "replica", "raylet"])
def test_what_has_not_streamed_is_not_lost(ray: Cluster, what: str) -> None:
    """The process ends at c = 16; the last one takes its node along."""
    find = {"engine": ray.engine, "replica": ray.replica, "raylet": ray.raylet}[what]
    counts = asyncio.run(_load(ray, lambda: find(WORKER).kill()))
    assert sum(counts.values()) >= CONCURRENCY
    assert not [outcome for outcome in counts if outcome.startswith("lost")], counts


async def _load(ray: Cluster, kill: Callable[[], None]) -> Counter[str]:
    """Send requests of all dialects, streamed and whole; `kill` when both replicas have some."""
    counts: Counter[str] = Counter()
    is_over = asyncio.Event()

    async def work(http: httpx.AsyncClient, number: int) -> None:
        while not is_over.is_set():
            path, body = list(STREAMS.values())[number % len(STREAMS)]
            is_stream = number % 2 == 0
            body = {**body, "stream": is_stream}
            if not is_stream:
                path = path.removesuffix("_stream")
            counts[await _outcome(http, path, body, is_stream)] += 1
            number += 5

    async with httpx.AsyncClient(base_url=ray.url, timeout=SECONDS) as http:
        workers = [asyncio.create_task(work(http, number)) for number in range(CONCURRENCY)]
        await asyncio.to_thread(wait_until, lambda: _are_busy(ray))
        await asyncio.to_thread(kill)
        await asyncio.sleep(SECONDS_AFTER)
        is_over.set()
        await asyncio.gather(*workers)
    return counts


def _are_busy(ray: Cluster) -> bool:
    sizes = ray.metric("tgi_batch_current_size")
    return len(sizes) == 2 and all(sizes.values())


async def _outcome(http: httpx.AsyncClient, path: str, body: Json, is_stream: bool) -> str:
    text = ""
    try:
        async with http.stream("POST", path, json=body) as response:
            async for part in response.aiter_text():
                text += part
    except httpx.TransportError as error:
        return f"lost: {path}: {error!r} after {text[:100]!r}"
    if response.status_code != 200:
        return f"lost: {path}: {response.status_code} {text[:100]!r}"
    if "the replica ended" not in text and "engine process ended" not in text:
        return "whole"
    has_tokens = is_stream and not text.startswith('data: {"error"')
    return "an error event after tokens" if has_tokens else f"lost: {path}: {text[:100]!r}"
