"""The stream as it is on the wire, read from a plain socket."""

from __future__ import annotations

import json
import socket
from typing import Any

import httpx
import pytest

from tests.server.running import RunningServer, script
from tokenloom_engine.messages import Finish, SequenceOutput, Token, TopToken

STEP_OF_THREE = SequenceOutput(
    0,
    [
        Token(1, "{\n", -0.5),
        Token(2, '"', -0.25, forced=True),
        Token(3, "é🙂", -0.125, forced=True),
    ],
)
LAST = SequenceOutput(
    0,
    [Token(0, "</s>", -1.0, special=True)],
    finish=Finish("eos_token", '{\n"é🙂', 4, 2),
)


def raw_stream(server: RunningServer, body: dict[str, Any], path: str) -> tuple[str, list[bytes]]:
    """The head of the response, and its HTTP chunks."""
    content = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        f"content-length: {len(content)}\r\nconnection: close\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
        connection.sendall(head.encode() + content)
        received = b"".join(iter(lambda: connection.recv(65536), b""))
    response_head, rest = received.split(b"\r\n\r\n", 1)
    chunks = []
    while rest != b"0\r\n\r\n":
        size, rest = rest.split(b"\r\n", 1)
        chunks.append(rest[: int(size, 16)])
        assert rest[int(size, 16) :].startswith(b"\r\n")
        rest = rest[int(size, 16) + 2 :]
    return response_head.decode().lower(), chunks


def events(chunks: list[bytes]) -> list[dict[str, Any]]:
    """The events' data. Each is one line after `data: `, and an empty line."""
    frames = b"".join(chunks).split(b"\n\n")
    assert frames.pop() == b""
    assert all(frame.startswith(b"data: {") and b"\n" not in frame for frame in frames)
    assert b"\r" not in b"".join(chunks)
    return [json.loads(frame.removeprefix(b"data: ")) for frame in frames]


@pytest.mark.parametrize(("path", "extra"), [("/generate_stream", {}), ("/", {"stream": True})])
def test_all_tokens_of_a_step_are_one_write(
    server: RunningServer, path: str, extra: dict[str, Any]
) -> None:
    parameters = {"stop": [script(STEP_OF_THREE, LAST)], "return_full_text": False}
    body = {"inputs": "a", "parameters": parameters, **extra}
    head, chunks = raw_stream(server, body, path)
    assert head.startswith("http/1.1 200 ")
    assert "\r\ncontent-type: text/event-stream\r\n" in head
    assert "\r\ncache-control: no-cache\r\n" in head
    assert "\r\nx-accel-buffering: no" in head
    assert "\r\nx-compute-type: 1-cpu\r\n" in head
    assert "\r\nx-compute-characters: 1\r\n" in head
    assert "x-total-time" not in head
    assert [chunk.count(b"data: ") for chunk in chunks] == [3, 1]
    assert events(chunks) == [
        {
            "index": 1,
            "token": {"id": 1, "text": "{\n", "logprob": -0.5, "special": False},
            "generated_text": None,
            "details": None,
        },
        {
            "index": 2,
            "token": {"id": 2, "text": '"', "logprob": -0.25, "special": False, "forced": True},
            "generated_text": None,
            "details": None,
        },
        {
            "index": 3,
            "token": {"id": 3, "text": "é🙂", "logprob": -0.125, "special": False, "forced": True},
            "generated_text": None,
            "details": None,
        },
        {
            "index": 4,
            "token": {"id": 0, "text": "</s>", "logprob": -1.0, "special": True},
            "generated_text": '{\n"é🙂',
            "details": None,
        },
    ]


def stream(server: RunningServer, *outputs: SequenceOutput, **given: Any) -> list[dict[str, Any]]:  # noqa: ANN401
    parameters = {"stop": [script(*outputs)], **given}
    body = {"inputs": "ab", "parameters": parameters}
    return events(raw_stream(server, body, "/generate_stream")[1])


def test_details_come_with_the_last_event_if_asked_for(server: RunningServer) -> None:
    *others, last = stream(server, STEP_OF_THREE, LAST, details=True, do_sample=True, seed=7)
    assert [event["details"] for event in others] == [None] * 3
    assert last["details"] == {
        "finish_reason": "eos_token",
        "generated_tokens": 4,
        "seed": 7,
        "input_length": 2,
    }


def test_the_prompt_goes_before_the_full_text(server: RunningServer) -> None:
    *_, last = stream(server, LAST, return_full_text=True)
    assert last["generated_text"] == 'ab{\n"é🙂'
    body = {"inputs": "ab", "stream": True, "parameters": {"max_new_tokens": 1}}
    (only,) = events(raw_stream(server, body, "/")[1])
    assert only["generated_text"].startswith("ab(")


def test_top_tokens(server: RunningServer) -> None:
    top = [TopToken(1, "x", -0.5, False), TopToken(2, "y", -1.5, False)]
    output = SequenceOutput(0, [Token(1, "x", -0.5, top=top)], finish=Finish("length", "x", 1, 0))
    (event,) = stream(server, output, top_n_tokens=2)
    assert event["top_tokens"] == [
        {"id": 1, "text": "x", "logprob": -0.5, "special": False},
        {"id": 2, "text": "y", "logprob": -1.5, "special": False},
    ]


def test_a_grammar_that_ends_without_a_token(server: RunningServer) -> None:
    end = SequenceOutput(0, finish=Finish("eos_token", "", 0, 0))
    (event,) = stream(server, end, details=True)
    assert event["index"] == 1
    assert event["token"] == {"id": 0, "text": "", "logprob": 0.0, "special": True}
    assert event["generated_text"] == ""
    assert event["details"]["generated_tokens"] == 0


def test_an_error_in_mid_stream_is_the_last_event(server: RunningServer) -> None:
    *first, last = stream(server, STEP_OF_THREE, SequenceOutput(0, error="no luck"))
    assert [event["index"] for event in first] == [1, 2, 3]
    assert last == {
        "error": "Request failed during generation: no luck",
        "error_type": "generation",
    }


def test_a_long_stream_is_whole(client: httpx.Client) -> None:
    body = {"inputs": "abc", "parameters": {"max_new_tokens": 300}}
    with client.stream("POST", "/generate_stream", json=body) as response:
        found = [json.loads(line[6:]) for line in response.iter_lines() if line]
    assert [event["index"] for event in found] == list(range(1, 301))
    assert "".join(event["token"]["text"] for event in found) == found[-1]["generated_text"]
