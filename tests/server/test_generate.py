from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.server.running import running, script
from tokenloom_engine.messages import Finish, SequenceOutput, Token


def post(client: httpx.Client, path: str = "/generate", **parameters: Any) -> httpx.Response:  # noqa: ANN401
    return client.post(path, json={"inputs": "hé", "parameters": parameters})


def test_text_and_headers(client: httpx.Client) -> None:
    response = post(client, max_new_tokens=4)
    assert response.status_code == 200
    assert response.json() == {"generated_text": "(72)(128)(103)(72)"}
    headers = response.headers
    assert headers["content-type"] == "application/json"
    assert headers["x-compute-type"] == "1-cpu"
    assert (headers["x-compute-characters"], headers["x-prompt-tokens"]) == ("2", "3")
    assert headers["x-generated-tokens"] == "4"
    assert float(headers["x-compute-time"]) > 0
    total, inference = int(headers["x-total-time"]), int(headers["x-inference-time"])
    assert total >= inference >= 4 * int(headers["x-time-per-token"])
    assert {"x-validation-time", "x-queue-time"} <= set(headers)


def test_details(client: httpx.Client) -> None:
    details = post(client, max_new_tokens=2, details=True).json()["details"]
    assert details == {
        "finish_reason": "length",
        "generated_tokens": 2,
        "seed": None,
        "prefill": [],
        "tokens": [
            {"id": 72, "text": "(72)", "logprob": -0.5, "special": False},
            {"id": 128, "text": "(128)", "logprob": -0.5, "special": False},
        ],
    }


def test_the_prompts_details(client: httpx.Client) -> None:
    output = SequenceOutput(0, [Token(1, "x", -1.0)], prompt=[Token(72, "h"), Token(3, "é", -2.0)])
    last = SequenceOutput(0, [Token(1, "y", -1.0)], finish=Finish("eos_token", "xy", 2, 0))
    response = post(client, decoder_input_details=True, stop=[script(output, last)])
    assert response.json()["details"]["prefill"] == [
        {"id": 72, "text": "h", "logprob": None},
        {"id": 3, "text": "é", "logprob": -2.0},
    ]


def test_best_of(client: httpx.Client) -> None:
    response = post(client, max_new_tokens=1, best_of=2, do_sample=True, details=True)
    details = response.json()["details"]
    (other,) = details["best_of_sequences"]
    assert other["seed"] != details["seed"]
    assert other["generated_text"] == response.json()["generated_text"] == "(72)"


def test_the_compat_route_answers_in_a_list(client: httpx.Client) -> None:
    assert post(client, "/", max_new_tokens=1).json() == [{"generated_text": "hé(72)"}]
    response = post(client, "/", max_new_tokens=1, return_full_text=False)
    assert response.json() == [{"generated_text": "(72)"}]


def test_the_full_text(client: httpx.Client) -> None:
    response = post(client, max_new_tokens=1, return_full_text=True)
    assert response.json() == {"generated_text": "hé(72)"}


@pytest.mark.parametrize("path", ["/generate", "/generate_stream", "/"])
@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"temperature": 0.0}, "`temperature` must be strictly positive"),
        ({"max_new_tokens": 0}, "`max_new_tokens` must be strictly positive"),
        ({"adapter_id": "x"}, "`adapter_id` must name a loaded adapter: none is. Given: x"),
        ({"stop": list("abcde")}, "`stop` supports up to 4 stop sequences. Given: 5"),
        (
            {"max_new_tokens": 2046},
            "`inputs` tokens + `max_new_tokens` must be <= 2048. "
            "Given: 3 `inputs` tokens and 2046 `max_new_tokens`",
        ),
    ],
)
def test_a_broken_rule_is_a_422(
    client: httpx.Client, path: str, parameters: dict[str, Any], message: str
) -> None:
    response = post(client, path, **parameters)
    assert response.status_code == 422
    assert response.headers["content-type"] == "application/json"
    assert response.json() == {
        "error": f"Input validation error: {message}",
        "error_type": "validation",
    }


@pytest.mark.parametrize("path", ["/generate", "/generate_stream", "/"])
def test_an_engine_that_fails_before_the_first_token_is_a_424(
    client: httpx.Client, path: str
) -> None:
    failure = script(SequenceOutput(0, started_at=1.0), SequenceOutput(0, error="no luck"))
    response = post(client, path, stop=[failure])
    assert response.status_code == 424
    assert response.json() == {
        "error": "Request failed during generation: no luck",
        "error_type": "generation",
    }


@pytest.mark.parametrize("path", ["/generate", "/generate_stream", "/"])
def test_a_dead_end_of_a_constraint_is_a_422(client: httpx.Client, path: str) -> None:
    dead_end = SequenceOutput(0, error="no text matches it", is_constraint_error=True)
    body = {
        "error": "Request failed during generation: no text matches it",
        "error_type": "constraint",
    }
    response = post(client, path, stop=[script(SequenceOutput(0, started_at=1.0), dead_end)])
    assert (response.status_code, response.json()) == (422, body)
    begun = SequenceOutput(0, [Token(7, "one", -1.0)], started_at=1.0)
    streamed = post(client, "/generate_stream", stop=[script(begun, dead_end)])
    assert streamed.status_code == 200
    assert json.loads(streamed.text.strip().splitlines()[-1].removeprefix("data:")) == body


@pytest.mark.parametrize("path", ["/generate", "/generate_stream", "/"])
def test_a_full_server_answers_429_at_once(tokenizer_file: Path, path: str) -> None:
    with (
        running(tokenizer_file, max_concurrent_requests=1) as server,
        httpx.Client(base_url=server.url) as client,
        client.stream("POST", "/generate_stream", json=ENDLESS) as first,
    ):
        assert first.status_code == 200
        response = post(client, path)
        assert response.status_code == 429
        assert response.json() == {"error": "Model is overloaded", "error_type": "overloaded"}


def test_a_server_that_stops_answers_503(tokenizer_file: Path) -> None:
    with running(tokenizer_file) as server, httpx.Client(base_url=server.url) as client:
        server.router.drain()
        for path in ("/generate", "/generate_stream"):
            response = post(client, path)
            assert response.status_code == 503
            assert response.json()["error_type"] == "unavailable"
            assert response.headers["retry-after"].isdigit()
        assert client.get("/health").status_code == 503


def test_the_compute_type_can_be_set(tokenizer_file: Path) -> None:
    with running(tokenizer_file, compute_type="2-big") as server:
        response = httpx.post(f"{server.url}/generate", json=ONE_TOKEN)
    assert response.headers["x-compute-type"] == "2-big"


def test_tokenize(client: httpx.Client) -> None:
    assert client.post("/tokenize", json={"inputs": "hé"}).json() == [
        {"id": 72, "text": "h", "start": 0, "stop": 1},
        {"id": 128, "text": "é", "start": 1, "stop": 3},
        {"id": 103, "text": "é", "start": 1, "stop": 3},
    ]
    assert client.post("/tokenize", json={"inputs": ""}).json() == []


ENDLESS = {"inputs": "a", "parameters": {"max_new_tokens": 2000}}
ONE_TOKEN = {"inputs": "a", "parameters": {"max_new_tokens": 1}}


def test_seeds_differ_from_one_start_to_the_next(tokenizer_file: Path) -> None:
    seeds = set()
    for _ in range(2):
        with running(tokenizer_file) as server, httpx.Client(base_url=server.url) as client:
            for _ in range(3):
                drawn = post(client, max_new_tokens=1, do_sample=True, details=True)
                seeds.add(drawn.json()["details"]["seed"])
    assert len(seeds) == 6
