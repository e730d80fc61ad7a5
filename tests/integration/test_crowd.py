"""Many requests at once: each gets its own, whole, and nobody waits for somebody else's prompt."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from functools import partial

import anyio
import httpx
import jsonschema
import pytest

from tests.integration.prompts import mixed_prompts
from tests.integration.serving import Json, Server, client, events, generate, token_ids

STORY = "Once upon a time, in a small town by the sea,"


def _schema(i: int) -> Json:
    """One of eight schemas, no two alike."""
    extra: list[Json] = [
        {"type": "integer", "minimum": 0, "maximum": 999},
        {"type": "boolean"},
        {"enum": ["red", "green", "blue"]},
        {"type": "string", "pattern": "^[a-z]{3,10}@[a-z]{3,8}\\.com$"},
        {"type": "array", "items": {"enum": [1, 2, 3]}, "maxItems": 4},
        {"anyOf": [{"type": "null"}, {"enum": [1.5, 2.5]}]},
        {"type": "string", "format": "date"},
        {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 3},
    ]
    return {
        "type": "object",
        "properties": {"full_name": {"type": "string", "maxLength": 16}, f"value_{i}": extra[i]},
        "required": ["full_name", f"value_{i}"],
        "additionalProperties": False,
    }


@pytest.mark.anyio
async def test_64_constrained_and_64_free(server: Server) -> None:
    """Every constrained output obeys its schema; no free one differs from its solo run."""
    prompts = mixed_prompts(64, longest=24)
    solo: dict[int, list[int]] = {}
    free: dict[int, list[int]] = {}
    constrained: dict[int, str] = {}
    async with client(server) as http:

        async def ask_free(into: dict[int, list[int]], i: int) -> None:
            into[i] = token_ids(await generate(http, prompts[i], max_new_tokens=16))

        async def ask_constrained(i: int) -> None:
            grammar = {"type": "json", "value": _schema(i % 8)}
            sampling = {"do_sample": True, "seed": i} if i % 2 else {}
            response = await generate(
                http, "A person as JSON: ", grammar=grammar, max_new_tokens=160, **sampling
            )
            constrained[i] = response["generated_text"]

        for i in range(64):
            await ask_free(solo, i)
        async with anyio.create_task_group() as tasks:
            for i in range(64):
                tasks.start_soon(ask_free, free, i)
                tasks.start_soon(ask_constrained, i)
    assert free == solo
    assert len(constrained) == 64
    for i, text in constrained.items():
        jsonschema.validate(json.loads(text), _schema(i % 8))


@pytest.mark.anyio
async def test_same_seed_same_tokens_alone_and_in_a_crowd(server: Server) -> None:
    drawn = {"do_sample": True, "temperature": 1.1, "top_p": 0.95, "max_new_tokens": 24}
    async with client(server) as http:
        alone = token_ids(await generate(http, STORY, seed=42, **drawn))
        crowd: list[list[int]] = []

        async def ask(seed: int | None) -> None:
            response = await generate(http, STORY, seed=seed, **drawn)
            if seed == 42:
                crowd.append(token_ids(response))

        async with anyio.create_task_group() as tasks:
            for seed in (42, None, 7, 42, None, 8, 42, 9):
                tasks.start_soon(ask, seed)
        other = await generate(http, STORY, **drawn)
        replay = await generate(http, STORY, seed=other["details"]["seed"], **drawn)
    assert crowd == [alone] * 3
    assert token_ids(other) != alone
    assert token_ids(replay) == token_ids(other), "the seed that was reported gives it again"


@pytest.mark.anyio
async def test_a_late_request_does_not_wait_for_the_running_ones(server: Server) -> None:
    async with client(server) as http:
        ended: list[float] = []

        async def run(seed: int) -> None:
            await generate(http, STORY, max_new_tokens=150, ignore_eos=True, seed=seed)
            ended.append(time.monotonic())

        async with anyio.create_task_group() as tasks:
            for seed in range(4):
                tasks.start_soon(run, seed)
            await anyio.sleep(1.0)
            assert not ended, "they were to run for longer"
            async for _ in events(http, "Hello", max_new_tokens=2):
                assert not ended, "the first token comes while all the others still run"
                break


@pytest.mark.anyio
async def test_a_long_prompt_holds_up_a_stream_for_one_chunk_at_most(
    server: Server, record_property: Callable[[str, object], None]
) -> None:
    """The stream has a token in each step, so between two tokens lies one chunk at most."""
    long_prompt = " ".join(mixed_prompts(60, longest=150))
    async with client(server) as http:
        length = len((await http.post("/tokenize", json={"inputs": long_prompt})).json())
        assert length > 4000
        times: list[float] = []
        took: list[float] = []

        async def prefill() -> None:
            start = time.monotonic()
            await generate(http, long_prompt, max_new_tokens=1)
            took.append(time.monotonic() - start)

        async with anyio.create_task_group() as tasks:
            async for _ in events(http, STORY, max_new_tokens=60, ignore_eos=True):
                times.append(time.monotonic())
                if len(times) == 10:
                    tasks.start_soon(prefill)
    gaps = [after - before for before, after in zip(times, times[1:], strict=False)]
    chunks = -(-length // 256)  # the default chunk on a CPU
    record_property("longest_gap_seconds", round(max(gaps), 3))
    record_property("prefill_seconds", round(took[0], 3))
    print(f"{length} tokens prefilled in {took[0]:.2f} s; longest gap {max(gaps):.3f} s")  # noqa: T201
    # A server that does not chunk would show one gap as long as the whole prefill.
    assert max(gaps) < took[0] * 3 / chunks


@pytest.mark.anyio
async def test_over_the_limit_is_refused_at_once(server: Server) -> None:
    """128 requests run; the 129th is told so, without waiting for any of them."""
    async with client(server) as http:

        async def hold(started: anyio.Event) -> None:
            async for _ in events(http, STORY, max_new_tokens=4000, ignore_eos=True):
                started.set()

        async with anyio.create_task_group() as tasks:
            holders = [anyio.Event() for _ in range(128)]
            for started in holders:
                tasks.start_soon(partial(hold, started))
            for started in holders:
                await started.wait()
            start = time.monotonic()
            for path in ("/generate", "/generate_stream"):
                response = await http.post(path, json={"inputs": "one more"})
                assert response.status_code == 429
                assert response.json() == {
                    "error": "Model is overloaded",
                    "error_type": "overloaded",
                }
            assert time.monotonic() - start < 2
            tasks.cancel_scope.cancel()
    _wait_until_idle(server)
    assert server.generate("Hello", max_new_tokens=1)["generated_text"]


def _wait_until_idle(server: Server) -> None:
    deadline = time.monotonic() + 10
    while server.metric("tgi_batch_current_size") or server.metric("tgi_queue_size"):
        assert time.monotonic() < deadline, "rows outlive their clients"
        time.sleep(0.05)
    assert httpx.get(f"{server.url}/health", timeout=5).status_code == 200
