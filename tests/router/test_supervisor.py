from __future__ import annotations

import os
import signal
from pathlib import Path

import anyio
import pytest

from tokenloom_router.errors import EngineStartError, GenerationError, UnavailableError
from tokenloom_router.metrics import Metrics
from tokenloom_router.request import GenerateRequest

from .conftest import RunRouter
from .running import fails, is_running, order, pid_of, samples, until, until_submitted

PLAIN = GenerateRequest(inputs="one two three", max_new_tokens=5)


async def test_a_killed_engine_fails_what_is_in_flight_and_comes_back(
    run_router: RunRouter, metrics: Metrics
) -> None:
    errors: list[str] = []
    async with run_router() as router:
        pid = pid_of(router)
        with anyio.fail_after(5):
            async with anyio.create_task_group() as tasks:
                for word in ("slow", "hang"):
                    for _ in range(20):
                        tasks.start_soon(fails, router, order(word), errors)
                await until_submitted(metrics, 40)
                os.kill(pid, signal.SIGKILL)
        assert errors == [
            "Request failed during generation: engine process ended unexpectedly (signal 9)"
        ] * len(errors)
        assert len(errors) == 40
        assert not router.is_ready
        with anyio.fail_after(1), pytest.raises(UnavailableError, match="not ready"):
            await router.generate(PLAIN)
        with pytest.raises(UnavailableError):
            async with router.stream(PLAIN):
                pytest.fail("there is no engine")
        await until(lambda: router.is_ready)
        assert pid_of(router) != pid
        assert len((await router.generate(PLAIN)).generations) == 1
    found = samples(metrics)
    assert found["tgi_engine_restarts"] == 1
    assert found['tgi_request_failure{err="generation"}'] == 40
    assert found['tgi_request_failure{err="unavailable"}'] == 2
    assert found["tgi_batch_max_total_tokens"] == 4096


@pytest.mark.parametrize(
    ("word", "reason"),
    [
        ("kill", "engine process ended unexpectedly (signal 9)"),
        ("garbage", "engine process sent a message that cannot be read"),
        ("fatal", "the double was told to give up"),
    ],
)
async def test_outputs_before_the_end_are_delivered(
    run_router: RunRouter, word: str, reason: str
) -> None:
    async with run_router() as router:
        async with router.stream(order(word)) as stream:
            for _ in range(2):
                assert len((await anext(stream)).tokens) == 1
            with anyio.fail_after(5), pytest.raises(GenerationError) as raised:
                await anext(stream)
            assert str(raised.value) == f"Request failed during generation: {reason}"
            ended = stream
        await until(lambda: router.is_ready)
        # ids go on, so that an old one cannot meet a new sequence
        async with router.stream(PLAIN) as stream:
            first = await anext(stream)
        assert ended.finish is None
        assert first.id == 1


async def test_the_last_words_of_an_engine_are_heard(run_router: RunRouter) -> None:
    async with run_router() as router, router.stream(order("burst", max_new_tokens=500)) as stream:
        num_outputs = 0
        with pytest.raises(GenerationError, match="exit code 4"):
            async for _ in stream:
                num_outputs += 1
        assert num_outputs == 499


async def test_an_engine_that_makes_no_progress_is_ended_and_started_again(
    run_router: RunRouter, metrics: Metrics
) -> None:
    errors: list[str] = []
    async with run_router(engine_stall_timeout=1.0) as router:
        pid = pid_of(router)
        with anyio.fail_after(10):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(fails, router, order("hang"), errors)
                tasks.start_soon(fails, router, order("slow"), errors)
                await until_submitted(metrics, 2)
                os.kill(pid, signal.SIGSTOP)
        assert (
            errors
            == [
                "Request failed during generation: engine process made no progress for 1 s",
            ]
            * 2
        )
        assert not router.is_ready
        await until(lambda: not is_running(pid))
        await until(lambda: router.is_ready)
        await router.generate(PLAIN)
    assert samples(metrics)["tgi_engine_restarts"] == 1


async def test_an_idle_or_busy_engine_is_not_stalled(
    run_router: RunRouter, metrics: Metrics
) -> None:
    async with run_router(engine_stall_timeout=1.0) as router:
        pid = pid_of(router)
        await anyio.sleep(1.5)
        async with router.stream(order("hang", max_new_tokens=2000)):
            await anyio.sleep(1.5)
        assert pid_of(router) == pid
    assert samples(metrics)["tgi_engine_restarts"] == 0


async def test_a_later_engine_gets_the_limits_of_the_first(run_router: RunRouter) -> None:
    async with run_router() as router:
        before = router.model
        os.kill(pid_of(router), signal.SIGKILL)
        await until(lambda: not router.is_ready)
        await until(lambda: router.is_ready)
        command = Path(f"/proc/{pid_of(router)}/cmdline").read_bytes().split(b"\0")
        assert f'"max_batch_total_tokens":{before.max_batch_total_tokens}'.encode() in command[-2]


async def test_backoff_doubles(run_router: RunRouter, tmp_path: Path, metrics: Metrics) -> None:
    log = tmp_path / "starts"

    def starts() -> list[float]:
        return [float(line) for line in log.read_text().splitlines()]

    async with run_router(f"--log={log}") as router:
        os.kill(pid_of(router), signal.SIGKILL)
        await until(lambda: len(starts()) == 5, 10)
    times = starts()[1:]
    gaps = [later - earlier for earlier, later in zip(times, times[1:], strict=False)]
    assert gaps[0] >= 0.2
    assert gaps[1] >= 0.4
    assert gaps[2] >= 0.8
    assert samples(metrics)["tgi_engine_restarts"] == 4


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--fatal", "the double was told not to start"),
        ("--crash", "engine process ended unexpectedly (exit code 3)"),
    ],
)
async def test_an_engine_that_cannot_start(run_router: RunRouter, flag: str, message: str) -> None:
    with anyio.fail_after(5), pytest.raises(EngineStartError) as raised:
        async with run_router(flag):
            pytest.fail("the router runs without an engine")
    assert str(raised.value) == message


async def test_limits_that_the_model_cannot_hold_stop_the_start(run_router: RunRouter) -> None:
    with pytest.raises(EngineStartError, match="`max_total_tokens` must be <="):
        async with run_router(max_total_tokens=1_000_000):
            pytest.fail("the router runs with impossible limits")


async def test_the_callers_own_error_comes_through(run_router: RunRouter) -> None:
    cause = KeyError("the cause")
    with pytest.raises(ZeroDivisionError) as raised:
        async with run_router() as router:
            pid = pid_of(router)
            raise ZeroDivisionError from cause
    assert raised.value.__cause__ is cause
    assert not is_running(pid)
