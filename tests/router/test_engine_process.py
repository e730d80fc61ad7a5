from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import anyio
import psutil
import pytest

from tokenloom_engine.config import EngineConfig
from tokenloom_router import engine_process
from tokenloom_router.config import RouterConfig
from tokenloom_router.errors import EngineStartError
from tokenloom_router.metrics import Metrics
from tokenloom_router.request import GenerateRequest
from tokenloom_router.router import Router

from .conftest import RunRouter
from .running import fails, is_running, order, pid_of, until, until_submitted

PLAIN = GenerateRequest(inputs="one two three", max_new_tokens=5)
WITHOUT_CAPABILITIES = """
import ctypes, resource, runpy
header, none = (ctypes.c_uint32 * 2)(0x20080522), (ctypes.c_uint32 * 6)()
assert ctypes.CDLL(None).capset(header, none) == 0
resource.setrlimit(resource.RLIMIT_NICE, (0, 0))
runpy.run_module("tokenloom_engine.process", run_name="__main__")
"""
"""The engine process as of a user who may not raise its priority."""


async def test_a_program_that_does_not_exist(model_path: Path, metrics: Metrics) -> None:
    router = Router(
        RouterConfig(),
        EngineConfig(model_id=str(model_path)),
        metrics,
        engine_command=("/nowhere/python",),
    )
    with pytest.raises(EngineStartError, match="engine process cannot be started"):
        async with router.running():
            pytest.fail("the router runs without an engine")


@pytest.mark.skipif(sys.platform != "linux", reason="capabilities are Linux's")
async def test_a_priority_that_it_may_not_take(model_path: Path, metrics: Metrics) -> None:
    router = Router(
        RouterConfig(),
        EngineConfig(model_id=str(model_path), nice=-1),
        metrics,
        engine_command=(sys.executable, "-c", WITHOUT_CAPABILITIES),
    )
    with pytest.raises(EngineStartError, match=r"--engine-nice -1: .*needs CAP_SYS_NICE"):
        async with router.running():
            pytest.fail("the engine runs with a priority that it does not have")


async def test_the_end_stops_the_engine_and_open_streams(
    run_router: RunRouter, metrics: Metrics
) -> None:
    errors: list[str] = []
    async with anyio.create_task_group() as tasks:
        async with run_router() as router:
            pid = pid_of(router)
            tasks.start_soon(fails, router, order("hang"), errors)
            await until_submitted(metrics, 1)
        assert not is_running(pid)
        assert not router.is_ready
        assert router.engine_pids == [None]
    assert errors == ["Request failed during generation: the server is shutting down"]


async def test_an_engine_that_does_not_listen_is_killed(
    run_router: RunRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_process, "STOP_SECONDS", 0.2)
    async with run_router("--deaf") as router:
        pid = pid_of(router)
        os.kill(pid, signal.SIGSTOP)
    assert not is_running(pid)


@pytest.mark.parametrize("num_passes", range(8))
async def test_a_cancelled_start_leaves_no_process(num_passes: int) -> None:
    """Cancelled after so many passes of the event loop: before, while and after it starts."""
    command = (sys.executable, "-c", "import sys; sys.stdin.read()")

    async def start() -> None:
        async with engine_process.EngineProcess.started(command, dict(os.environ)):
            await anyio.sleep_forever()

    before = set(psutil.Process().children())
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(start)
        for _ in range(num_passes):
            await anyio.sleep(0)
        tasks.cancel_scope.cancel()
    assert not set(psutil.Process().children()) - before


async def test_the_engine_cannot_outlive_the_front(
    model_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    command = [sys.executable, str(Path(__file__).with_name("front.py")), str(model_path)]
    # a killed front leaves its socket's folder behind; socket paths must be short
    environment = os.environ | {"TMPDIR": str(tmp_path_factory.mktemp("front"))}
    async with await anyio.open_process(command, stderr=None, env=environment) as front:
        assert front.stdout is not None
        pid = int(await front.stdout.receive())
        assert is_running(pid)
        front.kill()
        await front.wait()
        await until(lambda: not is_running(pid), 3)
