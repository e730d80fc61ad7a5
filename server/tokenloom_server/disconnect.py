"""Work that ends when its client leaves."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
from starlette.types import Message, Receive


@asynccontextmanager
async def cancelled_on_disconnect(receive: Receive) -> AsyncIterator[None]:
    """Cancel the block when the client disconnects, and go on after it.

    To be entered once the request's body is read. An exception of the block comes out as it is,
    not in a group.
    """
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_cancel_when_gone, receive, tasks.cancel_scope)
            yield
            tasks.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        error, *others = group.exceptions
        if others:
            raise
        raise error from error.__cause__


async def _cancel_when_gone(receive: Receive, scope: anyio.CancelScope) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    scope.cancel()


async def never_disconnected() -> Message:
    """A `receive` for an application inside the block: the block itself watches the client."""
    await anyio.sleep_forever()
    raise AssertionError("sleeping for ever ended")
