"""Token healing over HTTP."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from tests.integration.serving import Json, Server, body

LINK = 'The link is <a href="http:'


def stream(server: Server, inputs: str, **parameters: Any) -> list[Json]:  # noqa: ANN401 - JSON
    """All events of POST /generate_stream."""
    response = httpx.post(
        f"{server.url}/generate_stream", json=body(inputs, parameters), timeout=120
    )
    assert response.status_code == 200, response.text
    frames = response.text.removesuffix("\n\n").split("\n\n")
    return [json.loads(frame.removeprefix("data: ")) for frame in frames]


def test_what_details_say(server: Server) -> None:
    parameters: Json = {"max_new_tokens": 6, "details": True, "decoder_input_details": True}
    healed = server.generate(LINK, token_healing=True, **parameters)
    plain = server.generate(LINK, **parameters)
    assert healed["generated_text"].startswith("//")
    assert healed["details"]["healed_tokens"] == 1
    assert "healed_tokens" not in plain["details"]
    assert healed["details"]["prefill"] == plain["details"]["prefill"][:-1]
    first = healed["details"]["tokens"][0]
    assert (first["text"], healed["details"]["generated_tokens"]) == ("//", 6)
    assert first["logprob"] < 0, "the model's own"


@pytest.mark.parametrize(
    ("inputs", "parameters"),
    [
        (LINK, {"stop": [":", "/w"]}),
        ("The quick brown fox jum", {"do_sample": True, "seed": 2}),
        (
            "The capital of France is ",
            {"grammar": {"type": "choice", "value": ["Paris", "London"]}, "return_full_text": True},
        ),
    ],
)
def test_streamed_or_not_it_is_the_same(server: Server, inputs: str, parameters: Json) -> None:
    parameters = {"max_new_tokens": 8, "details": True, "token_healing": True, **parameters}
    whole = server.generate(inputs, **parameters)
    events = stream(server, inputs, **parameters)
    tokens = [event["token"] for event in events]
    text = "".join(token["text"] for token in tokens if not token["special"])
    assert tokens == whole["details"]["tokens"]
    assert events[-1]["generated_text"] == whole["generated_text"]
    assert whole["generated_text"] == (inputs if "return_full_text" in parameters else "") + text
    details, last = whole["details"], events[-1]["details"]
    assert details["healed_tokens"] == last["healed_tokens"] > 0
    assert details["finish_reason"] == last["finish_reason"]
    assert details["generated_tokens"] == last["generated_tokens"] == len(tokens)


def test_a_grammar_has_the_whole_output(server: Server) -> None:
    grammar = {"type": "choice", "value": ["Paris", "London"]}
    response = server.generate(
        "The capital of France is ",
        max_new_tokens=8,
        grammar=grammar,
        token_healing=True,
        details=True,
    )
    assert response["generated_text"] in grammar["value"]
    assert response["details"]["finish_reason"] == "eos_token"
    assert response["details"]["generated_tokens"] == 1, "` Paris` is one token"


def test_best_of(server: Server) -> None:
    response = server.generate(
        "The quick brown fox jum",
        max_new_tokens=6,
        best_of=2,
        do_sample=True,
        token_healing=True,
        details=True,
    )
    best = response["details"]
    for details in (best, *best["best_of_sequences"]):
        assert details["healed_tokens"] == 2
        assert not details["tokens"][0]["text"].startswith(" ")


@pytest.mark.parametrize("inputs", ["The", "你好", "Good 👍🏽"])
def test_nothing_to_heal(server: Server, inputs: str) -> None:
    parameters: Json = {"max_new_tokens": 4, "details": True}
    plain = server.generate(inputs, **parameters)
    assert server.generate(inputs, token_healing=True, **parameters) == plain
