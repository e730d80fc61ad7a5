from __future__ import annotations

import json
from contextlib import AsyncExitStack

import anyio
import pytest

from tokenloom_router.errors import (
    GenerationError,
    OverloadedError,
    ValidationError,
)
from tokenloom_router.metrics import Metrics
from tokenloom_router.router import Router

from .conftest import RunRouter
from .running import order, plain, read, samples, until_submitted


async def aborted_ids(router: Router) -> list[int]:
    """Return the ids that the double was told to abort so far."""
    outputs = await read(router, order("aborted", max_new_tokens=1))
    ids: list[int] = json.loads(outputs[0].tokens[0].text)
    return ids


async def test_at_the_limit_the_answer_is_immediate(
    run_router: RunRouter, metrics: Metrics
) -> None:
    async with run_router(max_concurrent_requests=2) as router:
        async with router.stream(order("slow")), router.stream(order("hang")):
            # the permit is taken before validation: also an invalid request is one too many
            for request in (plain(), plain(temperature=-1.0)):
                with anyio.fail_after(1), pytest.raises(OverloadedError):
                    await read(router, request)
            with anyio.fail_after(1), pytest.raises(OverloadedError):
                await router.generate(plain())
        assert len(await read(router, plain())) == 5
    assert samples(metrics)['tgi_request_failure{err="overloaded"}'] == 3


async def test_a_refused_request_keeps_nothing(run_router: RunRouter, metrics: Metrics) -> None:
    async with run_router(max_concurrent_requests=1) as router:
        for _ in range(3):
            with pytest.raises(ValidationError, match="`top_k` must be strictly positive"):
                await read(router, plain(top_k=0))
        with pytest.raises(ValidationError, match="supported when streaming"):
            await read(router, plain(stream=True, best_of=2))
        assert len(await read(router, plain())) == 5
    found = samples(metrics)
    assert found['tgi_request_failure{err="validation"}'] == 4
    assert found["tgi_request_success"] == 1


async def test_leaving_aborts_and_returns_the_permit(
    run_router: RunRouter, metrics: Metrics
) -> None:
    async with run_router(max_concurrent_requests=1) as router:
        async with router.stream(order("slow")) as early:
            left = (await anext(early)).id
        with pytest.raises(KeyError):
            async with router.stream(order("hang")):
                raise KeyError
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(router.generate, order("slow"))
            await until_submitted(metrics, 3)
            tasks.cancel_scope.cancel()
        assert await aborted_ids(router) == [left, left + 1, left + 2]
    assert samples(metrics)['tgi_request_failure{err="dropped"}'] == 3


async def test_a_finished_sequence_is_not_aborted(run_router: RunRouter) -> None:
    async with run_router() as router:
        assert len(await read(router, plain())) == 5
        with pytest.raises(GenerationError):
            await read(router, order("err"))
        assert await aborted_ids(router) == []


async def test_a_permit_is_free_once_its_sequence_ends(run_router: RunRouter) -> None:
    """Not when its outputs are read, or its response is written."""
    async with run_router(max_concurrent_requests=1) as router:
        for _ in range(3):
            async with router.stream(plain()) as stream:
                outputs = [await anext(stream) for _ in range(5)]
                assert outputs[-1].finish is not None
                assert len(await read(router, plain())) == 5
        async with router.stream(order("err")) as stream:
            with pytest.raises(GenerationError):
                [_ async for _ in stream]
            assert len(await read(router, plain())) == 5
        assert router.num_open_requests == 0


async def test_siblings_return_their_permits_one_by_one(run_router: RunRouter) -> None:
    async with run_router(max_concurrent_requests=2) as router:
        for request in (plain(n=2, do_sample=True), plain(n=1)):
            async with router.streams([request]) as streams:
                for stream in streams:
                    await stream.collect()
                assert router.num_open_requests == 1
                assert len(await read(router, plain())) == 5
        async with router.streams([plain(), order("slow")]) as (short, _):
            await short.collect()
            assert len(await read(router, plain())) == 5
            async with router.stream(order("slow")):
                with pytest.raises(OverloadedError):
                    await read(router, plain())


async def test_a_stream_may_be_left_in_another_task(run_router: RunRouter) -> None:
    async with run_router(max_concurrent_requests=1) as router:
        stack = AsyncExitStack()

        async def enter() -> None:
            stream = await stack.enter_async_context(router.stream(order("slow")))
            await anext(stream)

        async def leave() -> None:
            await stack.aclose()

        for step in (enter, leave):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(step)
        assert len(await aborted_ids(router)) == 1


async def test_five_hundred_clients_that_leave(run_router: RunRouter, metrics: Metrics) -> None:
    async with run_router(max_concurrent_requests=1) as router:
        for number in range(500):
            with anyio.CancelScope() as scope:
                async with router.stream(order("slow")) as stream:
                    if number % 2:
                        await anext(stream)
                    scope.cancel()
                    await anyio.lowlevel.checkpoint()
        assert len(await aborted_ids(router)) == 500
    found = samples(metrics)
    assert found['tgi_request_failure{err="dropped"}'] == 500
    assert found["tgi_batch_current_max_tokens"] == 0


async def test_an_engine_that_floods_fails_that_request_alone(run_router: RunRouter) -> None:
    async with run_router() as router:
        with pytest.raises(GenerationError, match="exceeded max_new_tokens"):
            await read(router, order("flood", max_new_tokens=60))
        assert len(await aborted_ids(router)) == 1


async def test_running_tokens_are_those_of_started_sequences(
    run_router: RunRouter, metrics: Metrics
) -> None:
    async with run_router() as router:
        runs = router.stream(order("slow", max_new_tokens=70))
        waits = router.stream(order("hang", max_new_tokens=90))
        async with runs as stream, waits:
            await anext(stream)
            assert samples(metrics)["tgi_batch_current_max_tokens"] == 74
        assert samples(metrics)["tgi_batch_current_max_tokens"] == 0


async def test_gauges_fall_when_the_last_client_leaves(
    run_router: RunRouter, metrics: Metrics
) -> None:
    async with run_router() as router:
        async with router.stream(order("late")) as stream:
            await anext(stream)
            assert samples(metrics)["tgi_batch_current_size"] == 1
        assert samples(metrics)["tgi_batch_current_size"] == 0
        await anyio.sleep(0.05)  # until the outputs of a step that ran meanwhile have come
        assert samples(metrics)["tgi_batch_current_size"] == 0
