"""Responses that a replica fails to give, or to end."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.types import Message

from tokenloom_ray.relayed_response import RETRIED, RelayedResponse
from tokenloom_router.errors import UnavailableError

pytestmark = pytest.mark.anyio
SSE = b"text/event-stream"
BODY: Message = {"type": "http.response.body", "body": b"data: 1\n\n", "more_body": True}
END: Message = {"type": "http.response.body", "body": b""}
DEATH: Any = RuntimeError("the actor died\nTraceback")


def start(status: int = 200, kind: bytes = b"application/json") -> Message:
    headers = [(b"content-type", kind), (b"x-replica-id", b"r1"), (b"x-request-id", b"a")]
    return {"type": "http.response.start", "status": status, "headers": headers}


class Client:
    def __init__(self, path: str = "/generate", *, is_last: bool = False) -> None:
        self.messages: list[Message] = []
        self.response = RelayedResponse(path, self._send, is_last=is_last)

    async def relay(self, *messages: Message) -> None:
        for message in messages:
            await self.response.relay(message)

    async def _send(self, message: Message) -> None:
        self.messages.append(message)


@pytest.mark.parametrize("status", sorted(RETRIED))
async def test_a_failure_is_held_back_while_there_is_another_replica(status: int) -> None:
    client = Client()
    await client.relay(start(status), END)
    assert client.messages == []
    assert client.response.is_refused and client.response.replica == "r1"


@pytest.mark.parametrize("status", sorted(RETRIED))
async def test_the_last_failure_is_passed_on(status: int) -> None:
    client = Client(is_last=True)
    await client.relay(start(status), END)
    assert [message.get("status") for message in client.messages] == [status, None]
    assert not client.response.is_refused


@pytest.mark.parametrize("status", [200, 400, 404, 413, 422])
async def test_a_response_is_passed_on_without_its_request_id(status: int) -> None:
    client = Client()
    await client.relay(start(status), END)
    assert client.messages[0]["status"] == status
    assert b"x-request-id" not in dict(client.messages[0]["headers"])
    assert not client.response.is_refused


async def test_a_replica_that_ends_before_the_body_is_replaced() -> None:
    client = Client()
    await client.relay(start())
    await client.response.break_off(DEATH)
    assert client.messages == []
    assert client.response.is_refused


async def test_the_last_replica_that_ends_before_the_body_is_unavailable() -> None:
    client = Client(is_last=True)
    with pytest.raises(UnavailableError):
        await client.response.break_off(DEATH)


@pytest.mark.parametrize(
    ("path", "event"),
    [
        ("/generate_stream", b'","error_type":"generation"}\n\n'),
        ("/v1/chat/completions", b',"code":"generation"}}\n\n'),
    ],
)
async def test_a_stream_that_breaks_ends_with_an_error_event(path: str, event: bytes) -> None:
    client = Client(path)
    await client.relay(start(kind=SSE), BODY)
    await client.response.break_off(DEATH)
    last = client.messages[-1]
    assert last["body"].startswith(b'data: {"error":') and last["body"].endswith(event)
    assert not last.get("more_body") and not client.response.is_refused


async def test_another_body_that_breaks_breaks_the_connection() -> None:
    client = Client()
    await client.relay(start(), BODY)
    with pytest.raises(RuntimeError):
        await client.response.break_off(DEATH)


async def test_an_end_after_the_response_does_not_matter() -> None:
    client = Client()
    await client.relay(start(), END)
    await client.response.break_off(DEATH)
    assert len(client.messages) == 2 and not client.response.is_refused
