"""Calls of an application without a port."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from tokenloom_ray.application_call import call_application
from tokenloom_ray.forwarded_request import ForwardedRequest


def request(path: str, body: bytes = b"") -> ForwardedRequest:
    scope = {"type": "http", "method": "POST", "path": path, "query_string": b"", "headers": []}
    return ForwardedRequest.create({**scope, "app": object(), "state": {}}, body)


async def echo(request: Request) -> Response:
    return Response(await request.body(), 201)


async def fail(_request: Request) -> Response:
    raise LookupError("a bug")


async def count(_request: Request) -> Response:
    async def numbers() -> AsyncIterator[str]:
        for number in range(3):
            yield f"{number}"
            await asyncio.sleep(0.01)

    return StreamingResponse(numbers())


APP = Starlette(routes=[Route(f"/{f.__name__}", f, methods=["POST"]) for f in (echo, fail, count)])


@pytest.mark.anyio
async def test_a_whole_response_comes_at_once() -> None:
    chunks = [messages async for messages in call_application(APP, request("/echo", b"text"))]
    assert [message["type"] for message in chunks[0]] == [
        "http.response.start",
        "http.response.body",
    ]
    assert (chunks[0][0]["status"], chunks[0][1]["body"]) == (201, b"text")
    assert len(chunks) == 1


@pytest.mark.anyio
async def test_a_stream_comes_in_parts() -> None:
    chunks = [messages async for messages in call_application(APP, request("/count"))]
    assert len(chunks) >= 3
    assert b"".join(m.get("body", b"") for messages in chunks for m in messages) == b"012"


@pytest.mark.anyio
async def test_a_bug_is_logged_and_answered(caplog: pytest.LogCaptureFixture) -> None:
    (messages,) = [messages async for messages in call_application(APP, request("/fail"))]
    assert messages[0]["status"] == 500
    assert "LookupError: a bug" in caplog.text


@pytest.mark.anyio
async def test_closing_cancels_the_application() -> None:
    ended: list[Message] = []

    async def endless(_scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        try:
            await receive()
        except asyncio.CancelledError:
            ended.append({"type": "http.disconnect"})
            raise

    call = call_application(endless, request("/"))
    assert [message["status"] for message in await anext(call)] == [200]
    await call.aclose()
    assert ended
