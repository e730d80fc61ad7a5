"""The generate routes over the real model."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoTokenizer, WatermarkDetector

from tests.integration.serving import Json, Server, body, token_ids

PROMPT = "The capital of France is"
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
DIFFICULT = "你好，世界🙂👍🏽 क्षि"


def stream(server: Server, inputs: str, **parameters: Any) -> list[Json]:  # noqa: ANN401 - JSON
    """All events of POST /generate_stream."""
    response = httpx.post(
        f"{server.url}/generate_stream", json=body(inputs, parameters), timeout=120
    )
    assert response.status_code == 200, response.text
    frames = response.text.removesuffix("\n\n").split("\n\n")
    return [json.loads(frame.removeprefix("data: ")) for frame in frames]


def text_of(events: list[Json]) -> str:
    """The tokens' texts, without those of special tokens."""
    tokens = [event["token"] for event in events]
    return "".join(token["text"] for token in tokens if not token["special"])


def test_text(server: Server) -> None:
    assert server.generate(PROMPT, max_new_tokens=2) == {"generated_text": " Paris."}
    whole = server.generate(PROMPT, max_new_tokens=2, return_full_text=True)
    assert whole == {"generated_text": f"{PROMPT} Paris."}
    response = httpx.post(f"{server.url}/", json=body(PROMPT, {"max_new_tokens": 2}))
    assert response.json() == [{"generated_text": f"{PROMPT} Paris."}]


def test_headers(server: Server) -> None:
    response = httpx.post(f"{server.url}/generate", json=body(PROMPT, {"max_new_tokens": 3}))
    headers = response.headers
    assert headers["x-compute-type"] == "1-cpu"
    assert headers["x-compute-characters"] == str(len(PROMPT))
    assert (headers["x-prompt-tokens"], headers["x-generated-tokens"]) == ("5", "3")
    parts = ("x-validation-time", "x-queue-time", "x-inference-time")
    assert sum(int(headers[part]) for part in parts) <= int(headers["x-total-time"])
    assert float(headers["x-compute-time"]) * 1000 >= int(headers["x-total-time"])


@pytest.mark.parametrize(
    "parameters",
    [
        {},
        {"do_sample": True, "seed": 4, "temperature": 1.5},
        {"repetition_penalty": 1.3, "frequency_penalty": 0.5},
        {"stop": ["\n", "the "]},
        {"grammar": {"type": "json", "value": PERSON}},
        {"grammar": {"type": "regex", "value": DIFFICULT}},
    ],
)
def test_streamed_or_not_it_is_the_same(server: Server, parameters: Json) -> None:
    whole = server.generate(PROMPT, max_new_tokens=24, details=True, **parameters)
    events = stream(server, PROMPT, max_new_tokens=24, details=True, **parameters)
    details, last = whole["details"], events[-1]
    if "grammar" in parameters and len(events) > details["generated_tokens"]:
        # That the text is complete showed after its last token: this event only says so.
        assert events.pop()["token"]["special"]
    assert [event["index"] for event in events] == list(range(1, len(events) + 1))
    assert [event["token"]["id"] for event in events] == token_ids(whole)
    assert text_of(events) == last["generated_text"] == whole["generated_text"]
    assert details["generated_tokens"] == last["details"]["generated_tokens"] == len(events)
    assert details["finish_reason"] == last["details"]["finish_reason"]
    assert details["seed"] == last["details"]["seed"] == parameters.get("seed")
    assert last["details"]["input_length"] == 5
    assert all(event["generated_text"] is None for event in events[:-1])


def test_log_probabilities(server: Server) -> None:
    details = server.generate(
        PROMPT, max_new_tokens=4, details=True, decoder_input_details=True, top_n_tokens=3
    )["details"]
    first, *others = details["prefill"]
    assert first["logprob"] is None
    assert "".join(token["text"] for token in details["prefill"]) == PROMPT
    assert all(token["logprob"] < 0 for token in others)
    for token, top in zip(details["tokens"], details["top_tokens"], strict=True):
        assert top[0] == token  # greedy
        assert len(top) == 3
        assert 0 > top[0]["logprob"] >= top[1]["logprob"] >= top[2]["logprob"]


def test_best_of(server: Server) -> None:
    response = server.generate(
        PROMPT, max_new_tokens=8, best_of=2, do_sample=True, temperature=2.0, details=True
    )
    best = response["details"]
    (other,) = best["best_of_sequences"]
    assert mean_logprob(best) >= mean_logprob(other)
    assert best["seed"] != other["seed"]


def mean_logprob(details: Json) -> float:
    logprobs = [token["logprob"] for token in details["tokens"]]
    mean: float = sum(logprobs) / len(logprobs)
    return mean


def test_a_drawn_seed_is_reported_and_can_be_replayed(server: Server) -> None:
    sampled: Json = {"max_new_tokens": 12, "do_sample": True, "details": True}
    first, second = (server.generate(PROMPT, **sampled) for _ in range(2))
    seed = first["details"]["seed"]
    assert seed != second["details"]["seed"]
    assert token_ids(server.generate(PROMPT, **sampled, seed=seed)) == token_ids(first)


def test_a_stop_string_is_kept_and_ends_the_text(server: Server) -> None:
    grammar = {"type": "regex", "value": "one two three four"}
    for stop in ("two thr", "e"):
        response = server.generate(PROMPT, grammar=grammar, stop=[stop], details=True)
        end = "one two three four".index(stop) + len(stop)
        assert response["generated_text"] == "one two three four"[:end]
        assert response["details"]["finish_reason"] == "stop_sequence"


def test_a_detector_finds_a_watermark(server: Server, model_path: Path) -> None:
    settings = {"greenlist_ratio": 0.5, "bias": 2.0}
    detector = WatermarkDetector(AutoConfig.from_pretrained(model_path), "cpu", settings)
    sampled: Json = {"max_new_tokens": 64, "temperature": 1.0, "seed": 3, "details": True}
    for watermark in (True, False):
        ids = token_ids(server.generate(PROMPT, **sampled, watermark=watermark))
        found = detector(torch.LongTensor([ids]), z_threshold=3.0)
        assert isinstance(found, np.ndarray)
        assert found.tolist() == [watermark]


def test_truncate_leaves_the_end_of_the_prompt(server: Server) -> None:
    response = server.generate(
        f"Some words. {PROMPT}", truncate=3, max_new_tokens=1, decoder_input_details=True
    )
    texts = [token["text"] for token in response["details"]["prefill"]]
    assert texts == [" of", " France", " is"]


def test_the_end_of_sequence_token_ends_the_text_unless_ignored(server: Server) -> None:
    chat = "<|im_start|>user\nSay hi.<|im_end|>\n<|im_start|>assistant\n"
    ended = server.generate(chat, max_new_tokens=100, details=True)["details"]
    assert ended["finish_reason"] == "eos_token"
    assert ended["tokens"][-1]["special"]
    number = ended["generated_tokens"] + 5
    beyond = server.generate(chat, max_new_tokens=number, ignore_eos=True, details=True)["details"]
    assert (beyond["finish_reason"], beyond["generated_tokens"]) == ("length", number)


def test_an_end_at_the_limit_is_not_called_length(server: Server) -> None:
    chat = "<|im_start|>user\nSay hi.<|im_end|>\n<|im_start|>assistant\n"
    for inputs, given in ((chat, {}), (PROMPT, {"stop": ["is", "."]})):
        free = server.generate(inputs, max_new_tokens=100, details=True, **given)["details"]
        assert free["finish_reason"] != "length"
        exact = free["generated_tokens"]
        same = server.generate(inputs, max_new_tokens=exact, details=True, **given)["details"]
        assert same == free


@pytest.mark.parametrize(
    "grammar",
    [
        {"type": "json", "value": PERSON},
        {"type": "json", "value": json.dumps(PERSON)},
        {"type": "json_object", "value": PERSON},
        {"type": "json_schema", "value": {"name": "person", "schema": PERSON}},
    ],
)
@pytest.mark.parametrize("seed", [1, 2])
def test_json_that_a_schema_describes(server: Server, grammar: Json, seed: int) -> None:
    response = server.generate(
        "A person: ", max_new_tokens=64, grammar=grammar, temperature=1.5, seed=seed, details=True
    )
    assert response["details"]["finish_reason"] == "eos_token"
    jsonschema.validate(json.loads(response["generated_text"]), PERSON)
    assert any(token.get("forced") for token in response["details"]["tokens"])


def test_text_that_a_regular_expression_matches(server: Server) -> None:
    pattern = r"[A-Z][a-z]{2,8}, [0-9]{4}"
    for seed in range(4):
        response = server.generate(
            "Place and year: ",
            max_new_tokens=40,
            grammar={"type": "regex", "value": pattern},
            temperature=1.5,
            seed=seed,
        )
        assert re.fullmatch(pattern, response["generated_text"])


def test_characters_of_many_bytes(server: Server) -> None:
    grammar = {"type": "regex", "value": DIFFICULT}
    events = stream(server, PROMPT, grammar=grammar)
    assert text_of(events) == events[-1]["generated_text"] == DIFFICULT
    assert not any("\ufffd" in event["token"]["text"] for event in events)
    for number in range(1, len(events)):
        cut = stream(server, PROMPT, grammar=grammar, max_new_tokens=number)
        assert text_of(cut) == cut[-1]["generated_text"]
        assert DIFFICULT.startswith(cut[-1]["generated_text"].rstrip("\ufffd"))


def test_every_documented_example_works_as_it_stands(server: Server) -> None:
    document = httpx.get(f"{server.url}/api-doc/openapi.json").json()
    number = 0
    for path, operations in document["paths"].items():
        if "post" in operations:
            content = operations["post"]["requestBody"]["content"]["application/json"]
            for example in content.get("examples", {}).values():
                url = server.url + path
                response = httpx.post(url, json=example["value"], timeout=60)
                assert response.status_code == 200, response.text
                assert "error" not in response.text
                number += 1
    assert number >= 18


def test_tokenize(server: Server, model_path: Path) -> None:
    text = f"Hello {DIFFICULT}<|im_end|>\n"
    tokens = httpx.post(f"{server.url}/tokenize", json={"inputs": text}).json()
    expected = AutoTokenizer.from_pretrained(model_path)(text).input_ids
    assert [token["id"] for token in tokens] == expected
    assert (tokens[0]["start"], tokens[-1]["stop"]) == (0, len(text.encode()))


def test_info(server: Server, model_path: Path) -> None:
    info = httpx.get(f"{server.url}/info").json()
    assert info["model_id"] == str(model_path)
    assert (info["model_dtype"], info["model_device_type"]) == ("float32", "cpu")
    assert info["max_input_tokens"] == info["max_total_tokens"] - 1


def test_forced_tokens_on_and_off_give_the_same(server: Server) -> None:
    grammar = {"type": "json", "value": PERSON}
    responses = [
        server.generate(
            "A person: ", grammar=grammar, max_new_tokens=60, details=True, forced_tokens=forced
        )
        for forced in (True, False)
    ]
    on, off = (response["details"]["tokens"] for response in responses)
    assert [token["id"] for token in on] == [token["id"] for token in off]
    assert any(token.get("forced") for token in on)
    assert not any(token.get("forced") for token in off)
    for one, other in zip(on, off, strict=True):
        assert abs(one["logprob"] - other["logprob"]) < 1e-3


@pytest.mark.parametrize(
    ("grammar", "pattern"),
    [
        ({"type": "choice", "value": ["red", "green"]}, "red|green"),
        ({"type": "grammar", "value": 'start: "a" (" b")~2'}, "a b b"),
        ({"type": "grammar", "value": 'root ::= "x" ("y" | "z")'}, "x[yz]"),
        ({"type": "json_object", "whitespace_pattern": "[ ]?"}, r"(?s)\{.*"),
    ],
)
def test_more_kinds_of_grammar(server: Server, grammar: Json, pattern: str) -> None:
    text = server.generate("Say: ", grammar=grammar, max_new_tokens=12)["generated_text"]
    assert re.fullmatch(pattern, text)
