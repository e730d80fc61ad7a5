"""Several engines behind one router: which one gets a request, and what the others notice."""

from __future__ import annotations

import os
import signal
from contextlib import AsyncExitStack

import anyio
import msgspec
import pytest

from tokenloom_engine.messages import Submit
from tokenloom_router.errors import EngineStartError, GenerationError, UnavailableError
from tokenloom_router.metrics import Metrics
from tokenloom_router.replica import MAX_SILENCE_SECONDS
from tokenloom_router.replicas import block_hashes
from tokenloom_router.request import GenerateRequest
from tokenloom_router.router import Router

from .conftest import RunRouter
from .running import fails, is_running, order, pid_of, plain, samples, until

BLOCK = 4
"""Tokens of a KV cache block of the engine double."""


def prompt(start: int, num_tokens: int = 400, **fields: object) -> GenerateRequest:
    """A request that never ends, whose prompt has no token in common with one of another start."""
    ids = tuple(range(start, start + num_tokens))
    return GenerateRequest(prompt_ids=ids, stop=("slow",), max_new_tokens=1000, **fields)  # type: ignore[arg-type]


async def opened(stack: AsyncExitStack, router: Router, request: GenerateRequest) -> int:
    """Run a request until the stack is left. Return which replica has it."""
    before = loads(router)
    await stack.enter_async_context(router.stream(request))
    (replica,) = (i for i, load in enumerate(loads(router)) if load != before[i])
    return replica


def loads(router: Router) -> list[int]:
    return [replica.client.waiting_tokens for replica in router._replicas._replicas]


async def test_a_prefix_has_a_home_until_its_load_outweighs_the_cache(
    run_router: RunRouter,
) -> None:
    async with run_router(replicas=2) as router, AsyncExitStack() as stack:
        homes = [await opened(stack, router, prompt(start)) for start in (1000, 2000)]
        assert homes == [0, 1], "unknown prefixes go where the least waits"
        # Each open sequence counts as 128 tokens, and the cache saves 400.
        seconds = [await opened(stack, router, prompt(2000)) for _ in range(3)]
        assert seconds == [1, 1, 1]
        await until(lambda: loads(router) == [128, 4 * 128], 5)
        assert await opened(stack, router, prompt(2000)) == 1, "384 tokens more < 400 saved"
        await until(lambda: loads(router) == [128, 5 * 128], 5)
        assert await opened(stack, router, prompt(2000)) == 0, "512 tokens more > 400 saved"
        await until(lambda: loads(router) == [2 * 128, 5 * 128], 5)
        assert await opened(stack, router, prompt(2000)) == 0, "both have it now: the least load"


async def test_prompts_without_a_full_block_go_to_the_least_load(run_router: RunRouter) -> None:
    async with run_router(replicas=2) as router, AsyncExitStack() as stack:
        replicas = [await opened(stack, router, prompt(7, BLOCK - 1)) for _ in range(4)]
        assert sorted(replicas) == [0, 0, 1, 1]


async def test_without_load_the_prefix_caches_fill_evenly(run_router: RunRouter) -> None:
    async with run_router(replicas=2) as router:
        chosen = []
        for start in range(0, 8000, 1000):
            async with AsyncExitStack() as stack:
                chosen.append(await opened(stack, router, prompt(start)))
        assert chosen == [0, 1] * 4


async def test_a_prefix_that_the_cache_has_no_room_for_is_forgotten(run_router: RunRouter) -> None:
    async with run_router(replicas=2) as router:
        for start in range(0, 20_000, 1000):
            async with router.stream(prompt(start, 1000)):
                pass
        first, last = (block_hashes(list(range(s, s + 1000)), BLOCK) for s in (0, 19_000))
        replicas = router._replicas._replicas
        assert [replica.num_blocks for replica in replicas] == [4096 // BLOCK] * 2
        assert [replica.num_cached(first) for replica in replicas] == [0, 0]
        assert sorted(replica.num_cached(last) for replica in replicas) == [0, len(last)]


def test_a_block_hash_tells_all_tokens_before_it() -> None:
    ids = list(range(100, 118))
    hashes = block_hashes(ids, BLOCK)
    assert len(hashes) == len(set(hashes)) == 4, "the last two tokens fill no block"
    assert block_hashes([*ids[:8], 1, *ids[9:]], BLOCK)[:2] == hashes[:2]
    other = block_hashes([1, *ids[1:]], BLOCK)
    assert not set(other) & set(hashes)
    assert len(block_hashes([5] * 10_000, BLOCK)) == 256


async def test_the_sequences_of_a_request_meet_in_one_engine(run_router: RunRouter) -> None:
    async with run_router(replicas=2) as router:
        several = [order("submit", max_new_tokens=1, do_sample=True, n=4)] * 2
        async with router.streams(several) as streams:
            before = loads(router)
            generations = [await stream.collect() for stream in streams]
    submits = [msgspec.json.decode(g.tokens[0].text, type=Submit) for g in generations]
    assert [submit.id for submit in submits] == [*range(4), *range(4)], "each engine has its own"
    assert len({submit.sampling.seed for submit in submits}) == 8
    assert all(load > 0 for load in before)


async def test_one_engine_killed_disturbs_no_other(run_router: RunRouter, metrics: Metrics) -> None:
    async with run_router(replicas=2) as router, AsyncExitStack() as stack:
        assert [await opened(stack, router, prompt(i)) for i in (1000, 2000)] == [0, 1]
        pids = [pid_of(router, i) for i in (0, 1)]
        async with router.stream(prompt(2000)) as safe, router.stream(prompt(1000)) as lost:
            await anext(safe)
            await anext(lost)
            os.kill(pids[0], signal.SIGKILL)
            with anyio.fail_after(5), pytest.raises(GenerationError, match="signal 9"):
                async for _ in lost:
                    pass
            assert (router.num_ready, router.is_ready) == (1, True)
            assert samples(metrics)["tgi_engine_replicas_ready"] == 1
            # A replica that is not ready takes no requests, though it had the prefix.
            generated = await router.generate(plain())
            assert len(generated.generations) == 1
            assert await opened(stack, router, prompt(1000)) == 1
            await until(lambda: router.num_ready == 2)
            assert len((await anext(safe)).tokens) == 1
        assert pid_of(router, 0) != pids[0] and pid_of(router, 1) == pids[1]
        assert router._replicas._replicas[0].num_blocks == 0, "a new engine has an empty cache"
    assert samples(metrics)["tgi_engine_restarts"] == 1


async def test_a_stopped_engine_takes_no_requests_and_comes_back(run_router: RunRouter) -> None:
    errors: list[str] = []
    async with run_router(replicas=2, engine_stall_timeout=4.0) as router:
        async with AsyncExitStack() as stack:
            assert [await opened(stack, router, prompt(i)) for i in (1000, 2000)] == [0, 1]
        stopped = pid_of(router, 0)
        os.kill(stopped, signal.SIGSTOP)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(fails, router, prompt(1000), errors)
            await anyio.sleep(MAX_SILENCE_SECONDS + 0.5)
            assert router.num_ready == 2, "it is not declared lost yet"
            async with AsyncExitStack() as stack:
                assert await opened(stack, router, prompt(1000)) == 1
                assert await opened(stack, router, prompt(3000)) == 1
            await until(lambda: not is_running(stopped))
        assert len(errors) == 1 and "made no progress for 4 s" in errors[0]
        await until(lambda: router.num_ready == 2)


async def test_silent_engines_take_requests_if_there_are_no_others(run_router: RunRouter) -> None:
    """A front that was stopped itself hears of nobody for a while."""
    async with run_router(replicas=2) as router:
        for replica in router._replicas._replicas:
            replica.client.received_at -= 10 * MAX_SILENCE_SECONDS
        async with router.stream(plain()) as stream:
            assert len((await stream.collect()).tokens) == 5


async def test_without_any_engine_requests_are_refused(run_router: RunRouter) -> None:
    async with run_router(replicas=2) as router:
        for i in (0, 1):
            os.kill(pid_of(router, i), signal.SIGKILL)
        await until(lambda: router.num_ready == 0)
        assert not router.is_ready
        with pytest.raises(UnavailableError, match="The engine is not ready"):
            router._replicas.choose([1, 2, 3])
        await until(lambda: router.num_ready == 2)


async def test_one_that_cannot_start_ends_the_start(run_router: RunRouter) -> None:
    with anyio.fail_after(10), pytest.raises(EngineStartError) as raised:
        async with run_router("--crash=1", replicas=3):
            pytest.fail("the router runs without one of its engines")
    assert str(raised.value) == (
        "replica 1 cannot start: engine process ended unexpectedly (exit code 3)"
    )
