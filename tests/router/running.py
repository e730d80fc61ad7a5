"""Requests for the engine double, and ways to watch what becomes of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio

from tokenloom_engine.messages import SequenceOutput
from tokenloom_router.errors import GenerationError
from tokenloom_router.metrics import Metrics
from tokenloom_router.request import GenerateRequest
from tokenloom_router.router import Router


def order(word: str, **fields: Any) -> GenerateRequest:  # noqa: ANN401
    """Make a request with an order for the engine double."""
    return GenerateRequest(inputs="one two three four", stop=(word,), **fields)


def samples(metrics: Metrics) -> dict[str, float]:
    """Return the value of each line, by the line's name and labels."""
    lines = metrics.render().decode().splitlines()
    pairs = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    return {name: float(value) for name, value in pairs}


async def until(is_true: Callable[[], bool], seconds: float = 10.0) -> None:
    """Wait for something to become true."""
    with anyio.fail_after(seconds):
        while not is_true():
            await anyio.sleep(0.01)


async def until_submitted(metrics: Metrics, number: int) -> None:
    """Wait until the router has sent so many requests to the engine."""
    await until(lambda: samples(metrics)["tgi_request_max_new_tokens_count"] == number)


def plain(max_new_tokens: int = 5, **fields: Any) -> GenerateRequest:  # noqa: ANN401
    """Make a request of three tokens."""
    return GenerateRequest(inputs="one two three", max_new_tokens=max_new_tokens, **fields)


async def read(router: Router, request: GenerateRequest) -> list[SequenceOutput]:
    """Run a request to its end."""
    async with router.stream(request) as stream:
        return [output async for output in stream]


def is_running(pid: int) -> bool:
    """Whether the process runs; an orphan that ended may still wait for its reaper."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def pid_of(router: Router, replica: int = 0) -> int:
    """Process id of an engine."""
    pid = router.engine_pids[replica]
    assert pid is not None
    return pid


async def fails(router: Router, request: GenerateRequest, errors: list[str]) -> None:
    """Run a request and note how the engine failed it."""
    try:
        await router.generate(request)
    except GenerationError as error:
        errors.append(str(error))
