"""Faults that servers like this one had, tried on OpenAI's routes."""

from __future__ import annotations

import json
import socket
import struct
import time
from contextlib import closing
from urllib.parse import urlsplit

import anyio
import httpx
import pytest

from tests.integration.openai_api import CHAT, COMPLETIONS, complete, stream_chat
from tests.integration.serving import Json, Server, client

NUMBERS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
TREES = ["apple", "pear", "plum", "fig", "date", "lime", "oak", "elm", "ash", "fir"]
WORDS = [*NUMBERS, *TREES, "red", "blue", "green", "grey", "pink", "tan", "sun", "moon", "sky"]
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "string", "maxLength": 12}, "b": {"type": "boolean"}},
    "required": ["a", "b"],
    "additionalProperties": False,
}


def phrase(number: int, length: int = 30) -> str:
    """A text of its own for each number."""
    return " ".join(WORDS[(number + 7 * i * (1 + number % 5)) % len(WORDS)] for i in range(length))


async def read(http: httpx.AsyncClient, path: str, body: Json, most: int | None = None) -> Json:
    """Stream; returns joined texts, finish reasons and how it ended. Leaves after `most` chunks."""
    result: Json = {"text": "", "finish": [], "done": False, "error": None, "chunks": 0}
    async with http.stream("POST", path, json={**body, "stream": True}) as response:
        assert response.status_code == 200, (await response.aread()).decode()
        async for line in response.aiter_lines():
            if line == "data: [DONE]":
                result["done"] = True
            elif line.startswith("data: "):
                chunk = json.loads(line.removeprefix("data: "))
                result["error"] = chunk.get("error")
                for choice in chunk.get("choices", ()):
                    delta = choice.get("delta", choice)
                    result["text"] += delta.get("content", delta.get("text", "")) or ""
                    if choice["finish_reason"]:
                        result["finish"].append(choice["finish_reason"])
                result["chunks"] += 1
                if most is not None and result["chunks"] >= most:
                    return result
            else:
                assert line in ("", ": "), "every line of an event begins with `data: `"
    return result


@pytest.mark.anyio
async def test_streams_beside_each_other_keep_their_own_text(server: Server) -> None:
    results: dict[int, Json] = {}

    async def run(http: httpx.AsyncClient, number: int) -> None:
        await anyio.sleep(number % 4 * 0.05)
        form: Json = {"guided_choice": [phrase(number)], "max_tokens": 200}
        form["forced_tokens"] = number % 2 == 0
        path, prompt = (
            (COMPLETIONS, {"prompt": "Go:"})
            if number % 3
            else (CHAT, {"messages": [{"role": "user", "content": "Go"}]})
        )
        most = 3 if number % 4 == 3 else None
        results[number] = await read(http, path, {**prompt, **form}, most)

    async with client(server) as http, anyio.create_task_group() as tasks:
        for number in range(16):
            tasks.start_soon(run, http, number)
    for number, result in results.items():
        if number % 4 == 3:
            assert phrase(number).startswith(result["text"])
        else:
            assert result["text"] == phrase(number)
            assert result["finish"] == ["stop"]
            assert result["done"]


@pytest.mark.anyio
async def test_every_stream_says_how_it_ends(server: Server) -> None:
    """Plain ones, constrained ones, ones that fail midway, and one in five that is dropped."""
    ambiguous = 'start: e\ne: e e | "a"'  # too much work at some token: fails in the middle
    forms: list[Json] = [
        {},
        {"response_format": {"type": "json", "value": SCHEMA}},
        {"max_tokens": 1},
        {"ebnf": ambiguous, "max_tokens": 400, "ignore_eos": True},
        {"n": 2, "stop": ["e"]},
    ]  # fmt: skip
    results: list[tuple[int, Json]] = []

    async def run(http: httpx.AsyncClient, number: int) -> None:
        messages = [{"role": "user", "content": f"Tell me of {WORDS[number % 30]}."}]
        body = {"messages": messages, "max_tokens": 40, "seed": number, **forms[number % 5]}
        results.append((number, await read(http, CHAT, body, 2 if number % 7 == 6 else None)))

    async with client(server) as http, anyio.create_task_group() as tasks:
        for number in range(45):
            tasks.start_soon(run, http, number)
    assert len(results) == 45
    for number, result in results:
        if number % 7 == 6:
            continue
        assert result["done"]
        num_choices = forms[number % 5].get("n", 1)
        assert result["error"] or len(result["finish"]) == num_choices, (number, result)
        if number % 5 == 1 and result["finish"] == ["stop"]:
            assert set(json.loads(result["text"])) == {"a", "b"}


@pytest.mark.anyio
async def test_a_seed_draws_the_same_beside_others(server: Server) -> None:
    own: Json = {"prompt": "Once upon a time", "max_tokens": 12, "temperature": 0.8, "seed": 42}
    alone = complete(server, **own)["choices"][0]["text"]
    wrong: Json = {"prompt": "x", "stop_token_ids": [10**6], "min_tokens": 3}

    async with client(server) as http:
        for _ in range(3):
            answers: list[httpx.Response] = []

            async def ask(body: Json, answers: list[httpx.Response] = answers) -> None:
                answers.append(await http.post(COMPLETIONS, json=body))

            async with anyio.create_task_group() as tasks:
                for body in (own, {**own, "seed": None}, {**own, "temperature": 0}, wrong):
                    tasks.start_soon(ask, body)
            texts = [a.json()["choices"][0]["text"] for a in answers if a.status_code == 200]
            assert len(texts) == 3
            assert alone in texts


def test_lone_bytes_are_no_trouble(server: Server) -> None:
    spans = httpx.post(f"{server.url}/tokenize", json={"inputs": "🙂ñ中क्षि"}, timeout=10).json()
    assert len(spans) > 6, "the characters have several tokens each"
    bias = {str(span["id"]): 20 for span in spans}
    for seed in range(3):
        body: Json = {"temperature": 1.9, "logit_bias": bias, "seed": seed, "max_tokens": 24}
        answer = complete(server, "x", logprobs=2, **body)
        text = answer["choices"][0]["text"]
        assert text.encode().decode() == text
        streamed = stream_chat(server, logprobs=True, top_logprobs=2, **body)
        assert streamed.text().encode()


def test_lines_of_a_stream(server: Server) -> None:
    for path, given in (
        (COMPLETIONS, {"prompt": "Hi"}),
        (CHAT, {"messages": [{"role": "user", "content": "Hi"}]}),
    ):
        raw = exchange(server, path, {**given, "stream": True, "max_tokens": 3})
        head, _, content = raw.partition(b"\r\n\r\n")
        assert b"200 OK" in head
        events = b"".join(dechunked(content)).split(b"\n\n")
        assert events.pop() == b""
        assert events.pop() == b"data: [DONE]"
        for event in events:
            assert event.startswith(b"data: {")
            assert b"\n" not in event
            json.loads(event.removeprefix(b"data: "))


def test_clients_that_leave_take_their_rows_along(server: Server) -> None:
    long: Json = {"prompt": "Tell me a story", "max_tokens": 2000, "ignore_eos": True}
    forms: list[Json] = [{}, {"stream": True}, {"n": 4}, {"n": 4, "stream": True}]
    for more in [*forms, {"prompt": ["a", "b"]}]:
        with closing(connect(server, COMPLETIONS, {**long, **more})) as connection:
            wait_for(server, at_least=more.get("n", 1))
            # a reset instead of an orderly end
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        wait_for(server, at_least=0, at_most=0)
    assert server.metric("tgi_queue_size") == 0
    exact = complete(server, "Go:", guided_choice=["apples are red"])
    assert exact["choices"][0]["text"] == "apples are red"


def connect(server: Server, path: str, body: Json) -> socket.socket:
    """Send a request; the answer is still to be read."""
    content = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        f"connection: close\r\ncontent-length: {len(content)}\r\n\r\n"
    )
    address = urlsplit(server.url)
    connection = socket.create_connection((address.hostname, address.port), timeout=60)
    connection.sendall(head.encode() + content)
    return connection


def exchange(server: Server, path: str, body: Json) -> bytes:
    """A whole answer as it came."""
    received = b""
    with closing(connect(server, path, body)) as connection:
        while data := connection.recv(65536):
            received += data
    return received


def dechunked(content: bytes) -> list[bytes]:
    """The parts of a chunked body."""
    parts = []
    while content:
        size, _, rest = content.partition(b"\r\n")
        length = int(size, 16)
        parts.append(rest[:length])
        content = rest[length + 2 :]
    return parts


def wait_for(server: Server, at_least: float, at_most: float = 100) -> None:
    """Wait for the number of running sequences."""
    deadline = time.monotonic() + 20
    while not at_least <= server.metric("tgi_batch_current_size") <= at_most:
        assert time.monotonic() < deadline, "a sequence goes on without its client"
        time.sleep(0.01)
