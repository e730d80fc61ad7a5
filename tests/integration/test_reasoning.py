"""Reasoning: what stands in front of an answer is told apart from it, and never constrained."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.integration.openai_api import CHAT, Streamed, ask, stream
from tests.integration.serving import Json, Server, serve

ANSWER: Json = {
    "type": "object",
    "properties": {"answer": {"type": "integer"}},
    "required": ["answer"],
    "additionalProperties": False,
}
FORM = {"type": "json_schema", "json_schema": {"name": "a", "schema": ANSWER}}
ADD = {"type": "function", "function": {"name": "add", "parameters": ANSWER}}


def turn(a: int, b: int) -> list[Json]:
    answer = f'<think>\nI add {a} and {b}.\n</think>\n\n{{"answer":{a + b}}}'
    return [
        {"role": "user", "content": f"What is {a} plus {b}?"},
        {"role": "assistant", "content": answer},
    ]


SHOTS = [*turn(2, 3), *turn(1, 3), {"role": "user", "content": "What is 4 plus 3?"}]


@pytest.fixture(scope="module")
def server(model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    log = tmp_path_factory.mktemp("reasoning") / "log"
    flags = ("--dtype", "float32", "--reasoning-parser", "think", "--tool-call-parser", "hermes")
    with serve(log, "--model-id", str(model_path), *flags) as server:
        yield server


def think(server: Server, messages: list[Json] = SHOTS, **body: Any) -> Json:  # noqa: ANN401
    return ask(server, CHAT, messages=messages, **{"temperature": 0, "max_tokens": 60, **body})


def reasoning_of(streamed: Streamed) -> str:
    deltas = [choice["delta"] for choice in streamed.choices]
    for delta in deltas:
        assert not ("reasoning_content" in delta and delta.get("content"))
    return "".join(delta.get("reasoning_content", "") for delta in deltas)


@pytest.mark.parametrize("body", [{}, {"response_format": FORM}], ids=["free", "schema"])
def test_reasoning_is_told_apart(server: Server, body: Json) -> None:
    answer = think(server, **body)
    message = answer["choices"][0]["message"]
    assert message["reasoning_content"].startswith("I add 4 and 3.")
    jsonschema.validate(json.loads(message["content"]), ANSWER)
    details = answer["usage"]["completion_tokens_details"]
    assert 0 < details["reasoning_tokens"] < answer["usage"]["completion_tokens"]
    streamed = stream(server, CHAT, messages=SHOTS, temperature=0, max_tokens=60, **body)
    assert reasoning_of(streamed) == message["reasoning_content"]
    assert streamed.text() == message["content"]
    again = think(server, [*SHOTS, message, {"role": "user", "content": "What is 1 plus 1?"}])
    assert again["choices"][0]["message"]["content"] is not None


def test_the_answer_does_not_escape_into_reasoning(server: Server) -> None:
    """However the model was drawn, a finished answer is JSON, whole, and not among the thoughts."""
    answers = think(server, response_format=FORM, n=8, temperature=1.3, seed=1, max_tokens=80)
    finished = [c for c in answers["choices"] if c["finish_reason"] == "stop"]
    assert finished
    for choice in finished:
        jsonschema.validate(json.loads(choice["message"]["content"]), ANSWER)
        assert "</think>" not in choice["message"].get("reasoning_content", "")


def test_reasoning_that_the_prompt_began_goes_on(server: Server) -> None:
    """A cut inside of it is no answer."""
    begun = [*SHOTS, {"role": "assistant", "content": "<think>\nI add 4"}]
    message = think(server, begun, response_format=FORM)["choices"][0]["message"]
    assert message["reasoning_content"].startswith("and 3.")
    jsonschema.validate(json.loads(message["content"]), ANSWER)
    (cut,) = think(server, begun, response_format=FORM, max_tokens=2)["choices"]
    assert cut["finish_reason"] == "length"
    assert cut["message"]["content"] == "" and cut["message"]["reasoning_content"]


def test_calls_follow_reasoning(server: Server) -> None:
    """In Hermes' form."""
    shots = []
    for a, b in ((2, 3), (1, 3)):
        call = {
            "id": f"{a}",
            "type": "function",
            "function": {"name": "add", "arguments": json.dumps({"answer": a + b})},
        }
        text = f"<think>\nI add {a} and {b}.\n</think>\n"
        shots += [
            {"role": "user", "content": f"What is {a} plus {b}?"},
            {"role": "assistant", "content": text, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": f"{a}", "content": "good"},
            {"role": "assistant", "content": f"It is {a + b}."},
        ]
    shots.append({"role": "user", "content": "What is 4 plus 3?"})
    for choice in ("auto", "required"):
        (answer,) = think(server, shots, tools=[ADD], tool_choice=choice, max_tokens=80)["choices"]
        message = answer["message"]
        assert answer["finish_reason"] == "tool_calls", answer
        assert "I add 4 and 3" in message["reasoning_content"] and message["content"] is None
        (call,) = message["tool_calls"]
        jsonschema.validate(json.loads(call["function"]["arguments"]), ANSWER)


def test_a_request_without_reasoning_is_as_ever(server: Server) -> None:
    (choice,) = think(
        server, [{"role": "user", "content": "Hi"}], structured_outputs={"choice": ["yes", "no"]}
    )["choices"]
    assert choice["message"]["content"] in ("yes", "no")
