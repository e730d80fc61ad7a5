from __future__ import annotations

import threading

import anyio
import pytest

from tokenloom_server.body_reader import LARGE_BYTES, BodyReader

SMALL = b"x" * (LARGE_BYTES - 1)
LARGE = b"x" * LARGE_BYTES


def reads_in(_body: bytes) -> int:
    return threading.get_ident()


@pytest.mark.anyio
async def test_a_large_body_is_read_in_a_thread_and_a_small_one_here() -> None:
    reader = BodyReader(reads_in)
    assert await reader.read(SMALL) == threading.get_ident()
    assert await reader.read(LARGE) != threading.get_ident()


@pytest.mark.anyio
async def test_others_go_on_while_a_large_body_is_read() -> None:
    others_went_on = threading.Event()
    reader = BodyReader(lambda _body: others_went_on.wait(20))

    async def go_on() -> None:
        others_went_on.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(go_on)  # begins once this task waits
        assert await reader.read(LARGE)


@pytest.mark.anyio
async def test_large_bodies_take_turns() -> None:
    alone = threading.Lock()

    def parse(body: bytes) -> bytes:
        assert alone.acquire(blocking=False)
        try:
            threading.Event().wait(0.01)
        finally:
            alone.release()
        return body

    reader = BodyReader(parse)
    read: list[bytes] = []

    async def add(body: bytes) -> None:
        read.append(await reader.read(body))

    bodies = [LARGE + bytes([number]) for number in range(5)]
    async with anyio.create_task_group() as tasks:
        for body in bodies:
            tasks.start_soon(add, body)
    assert sorted(read) == bodies


@pytest.mark.anyio
@pytest.mark.parametrize("body", [SMALL, LARGE])
async def test_what_is_wrong_is_raised(body: bytes) -> None:
    def refuse(_body: bytes) -> None:
        raise ValueError("wrong")

    with pytest.raises(ValueError, match="wrong"):
        await BodyReader(refuse).read(body)
