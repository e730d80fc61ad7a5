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
from tests.integration.serving import Json, Server, body, client, serve

ROUND, WIDTH = 400, 8
KINDS = ("plain", "invalid", "left", "constrained", "details", "empty")
MOST_BYTES = 32 * 2**20
"""That may be kept of the second and third round together; allocators are not exact."""


@pytest.fixture(scope="module")
def tiny(model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("tiny")
    save_random_model(folder, AutoTokenizer.from_pretrained(model_path))
    limits = ("--max-batch-total-tokens", "4096", "--max-total-tokens", "512")
    with serve(folder / "log", "--model-id", str(folder), "--dtype", "float32", *limits) as server:
        yield server


@pytest.mark.anyio
async def test_after_many_requests_all_is_as_before(tiny: Server) -> None:
    engine = tiny.engine_pid()
    sizes = []
    for number in range(3):
        assert await _round(tiny, number) == {
            ("plain", 200): ROUND // len(KINDS) + 1,
            ("invalid", 422): ROUND // len(KINDS) + 1,
            ("left", 200): ROUND // len(KINDS) + 1,
            ("constrained", 200): ROUND // len(KINDS) + 1,
            ("details", 200): ROUND // len(KINDS),
            ("empty", 200): ROUND // len(KINDS),
        }
        await _idle(tiny)
        sizes.append(_memory(tiny))
    assert tiny.engine_pid() == engine
    assert sizes[2] - sizes[0] < MOST_BYTES, sizes
    permits = tiny.metric("tgi_queue_size") + tiny.metric("tgi_batch_current_size")
    assert permits == 0


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
