"""Many ordinary requests, one after the other: none is forgotten, and nothing is kept of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import anyio
import httpx
import psutil
import pytest
from transformers import AutoTokenizer

from tests.integration.random_model import save_random_model
from tests.integration.serving import Json, Server, body, client, generate, serve

ROUNDS, ROUND, WIDTH = 5, 400, 8
KINDS = ("plain", "invalid", "left", "constrained", "details", "empty", "adapter", "logprobs")
MOST_BYTES = 32 * 2**20
"""That may be kept of all rounds after the first; allocators are not exact."""
CACHE, LIMIT = 4096, 512


@pytest.fixture(scope="module")
def tiny(model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("tiny")
    save_random_model(folder, AutoTokenizer.from_pretrained(model_path))
    limits = ("--max-batch-total-tokens", str(CACHE), "--max-total-tokens", str(LIMIT))
    with serve(folder / "log", "--model-id", str(folder), "--dtype", "float32", *limits) as server:
        yield server


@pytest.mark.anyio
async def test_after_2000_requests_all_is_as_before(tiny: Server) -> None:
    engine = tiny.engine_pid()
    refused = ("invalid", "adapter")
    sizes = []
    for number in range(ROUNDS):
        assert await _round(tiny, number) == {
            (kind, 422 if kind in refused else 200): ROUND // len(KINDS) for kind in KINDS
        }
        await _idle(tiny)
        sizes.append(_memory(tiny))
    assert tiny.engine_pid() == engine
    assert sizes[-1] - sizes[0] < MOST_BYTES, sizes
    waiting_or_running = tiny.metric("tgi_queue_size") + tiny.metric("tgi_batch_current_size")
    assert waiting_or_running == 0


@pytest.mark.anyio
async def test_requests_at_the_limits_all_finish_though_the_cache_cannot_hold_them(
    tiny: Server,
) -> None:
    engine, preemptions = tiny.engine_pid(), tiny.metric("tgi_batch_preemptions")
    new = LIMIT // 2
    ends: list[tuple[int, str, int]] = []
    async with client(tiny) as http:

        async def ask(number: int) -> None:
            given = {"max_new_tokens": new, "ignore_eos": True, "truncate": LIMIT - new}
            prompt = f"{number} stones" * LIMIT
            response = await generate(http, prompt, **given, decoder_input_details=True)
            details = response["details"]
            length = len(details["prefill"]) + details["generated_tokens"]
            ends.append((length, details["finish_reason"], len(details["tokens"])))

        async with anyio.create_task_group() as tasks:
            for number in range(2 * CACHE // LIMIT):
                tasks.start_soon(ask, number)
    assert ends == [(LIMIT, "length", new)] * (2 * CACHE // LIMIT)
    assert tiny.metric("tgi_batch_preemptions") > preemptions
    assert tiny.metric("tgi_kv_cache_used_tokens") == 0
    assert tiny.engine_pid() == engine


async def _round(server: Server, number: int) -> Counter[tuple[str, int]]:
    """How many of each kind got which status."""
    found: Counter[tuple[str, int]] = Counter()
    limiter = anyio.CapacityLimiter(WIDTH)
    async with client(server) as http:

        async def ask(at: int) -> None:
            kind = KINDS[at % len(KINDS)]
            async with limiter:
                found[kind, await _ask(http, kind, f"{number}.{at} stones and")] += 1

        async with anyio.create_task_group() as tasks:
            for at in range(ROUND):
                tasks.start_soon(ask, at)
    return found


async def _ask(http: httpx.AsyncClient, kind: str, inputs: str) -> int:
    given: dict[str, Json] = {
        "plain": {"max_new_tokens": 6},
        "invalid": {"temperature": -1},
        "left": {"max_new_tokens": 200, "ignore_eos": True},
        "constrained": {"grammar": {"type": "regex", "value": inputs[:6].replace(".", "!")}},
        "details": {"max_new_tokens": 4, "details": True, "decoder_input_details": True},
        "empty": {"grammar": {"type": "regex", "value": "(a?){0}"}},
        "adapter": {"adapter_id": inputs},
        "logprobs": {"max_new_tokens": 1, "details": True, "top_n_tokens": 5},
    }
    if kind == "left":
        async with http.stream(
            "POST", "/generate_stream", json=body(inputs, given[kind])
        ) as response:
            await anext(response.aiter_bytes())
            return response.status_code
    response = await http.post("/generate", json=body(inputs, given[kind]))
    if kind in ("constrained", "empty"):
        expected = inputs[:6].replace(".", "!") if kind == "constrained" else ""
        assert response.json()["generated_text"] == expected
    return response.status_code


async def _idle(server: Server) -> None:
    """Wait until the engine has nothing to do."""
    with anyio.fail_after(30):
        while server.metric("tgi_batch_current_size") + server.metric("tgi_queue_size"):
            await anyio.sleep(0.05)


def _memory(server: Server) -> int:
    """What the server's processes hold besides mapped files."""
    process = psutil.Process(server.process.pid)
    return sum(
        info.rss - info.shared
        for info in (part.memory_info() for part in [process, *process.children(recursive=True)])
    )
