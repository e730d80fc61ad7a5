"""OpenAI's routes when the engine fails, is full, or is not there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.server.running import running, script
from tokenloom_engine.messages import Finish, SequenceOutput, Token

PATH = "/v1/completions"
ENDLESS = {"prompt": "abc", "max_tokens": 1800, "stream": True}
FAILS_LATER = script(
    SequenceOutput(0, [Token(7, "one", -1.0)], started_at=1.0), SequenceOutput(0, error="no luck")
)


def post(client: httpx.Client, **fields: Any) -> httpx.Response:  # noqa: ANN401
    return client.post(PATH, json={"prompt": "abc", "max_tokens": 4, **fields})


@pytest.mark.parametrize("stream", [False, True])
def test_an_engine_that_fails_before_the_first_token(client: httpx.Client, stream: bool) -> None:
    failure = script(SequenceOutput(0, started_at=1.0), SequenceOutput(0, error="no luck"))
    response = post(client, stop=failure, stream=stream)
    assert response.status_code == 500
    assert response.json()["error"] == {
        "message": "Request failed during generation: no luck",
        "type": "server_error",
        "param": None,
        "code": "generation",
    }
    refusal = post(client, stop=script(SequenceOutput(0, refusal="grammar is wrong")), regex="a*")
    assert refusal.status_code == 400
    assert refusal.json()["error"]["message"] == "`regex` is wrong"


@pytest.mark.parametrize("stream", [False, True])
def test_a_dead_end_of_a_constraint_is_the_requests_fault(
    client: httpx.Client, stream: bool
) -> None:
    dead_end = SequenceOutput(0, error="no text matches it", is_constraint_error=True)
    expected = {
        "message": "Request failed during generation: no text matches it",
        "type": "invalid_request_error",
        "param": "regex",
        "code": "constraint_failed",
    }
    at_once = script(SequenceOutput(0, started_at=1.0), dead_end)
    response = post(client, stop=at_once, stream=stream, regex="a*")
    assert (response.status_code, response.json()["error"]) == (400, expected)
    later = script(SequenceOutput(0, [Token(7, "one", -1.0)], started_at=1.0), dead_end)
    response = post(client, stop=later, stream=stream, regex="a*")
    if stream:
        *_, event, _ = response.text.strip().split("\n\n")
        assert json.loads(event.removeprefix("data: "))["error"] == expected
    else:
        assert (response.status_code, response.json()["error"]) == (400, expected)


@pytest.mark.parametrize("n", [1, 3])
def test_an_engine_that_fails_in_the_middle(client: httpx.Client, n: int) -> None:
    response = post(client, stop=FAILS_LATER, stream=True, n=n)
    assert response.status_code == 200
    *chunks, error, done = response.text.strip().split("\n\n")
    assert done == "data: [DONE]"
    assert "no luck" in json.loads(error.removeprefix("data: "))["error"]["message"]
    assert chunks
    assert all(json.loads(c.removeprefix("data: "))["choices"][0]["text"] == "one" for c in chunks)
    assert post(client, stop=FAILS_LATER, n=n).status_code == 500


def test_choices_are_told_apart(client: httpx.Client) -> None:
    texts = [post(client, prompt=prompt).json()["choices"][0]["text"] for prompt in ("ab", "xyz")]
    assert texts[0] != texts[1]
    both = post(client, prompt=["ab", "xyz"], n=2).json()
    assert [choice["text"] for choice in both["choices"]] == [
        text for text in texts for _ in range(2)
    ]
    assert both["usage"]["prompt_tokens"] == 5
    assert both["usage"]["completion_tokens"] == 16


def test_permits(tokenizer_file: Path) -> None:
    with (
        running(tokenizer_file, max_concurrent_requests=2) as server,
        httpx.Client(base_url=server.url) as client,
    ):
        too_many = post(client, n=3)
        assert too_many.status_code == 400
        assert "--max-concurrent-requests" in too_many.json()["error"]["message"]
        with client.stream("POST", PATH, json={**ENDLESS, "n": 2}) as first:
            assert first.status_code == 200
            full = post(client)
            assert full.status_code == 429
            assert full.json()["error"]["code"] == "rate_limit_exceeded"
        while post(client, n=2).status_code == 429:
            pass  # the server has yet to see that the client left
        with client.stream("POST", PATH, json=ENDLESS) as first:
            assert first.status_code == 200
            assert post(client).status_code == 200
            assert post(client, n=2).status_code == 429, "both or none"


def test_prompts_of_one_request(tokenizer_file: Path) -> None:
    with (
        running(tokenizer_file, max_client_batch_size=2) as server,
        httpx.Client(base_url=server.url) as client,
    ):
        assert post(client, prompt=["a", "b"]).status_code == 200
        error = post(client, prompt=["a", "b", "c"]).json()["error"]
        assert error["param"] == "prompt"
        assert "--max-client-batch-size" in error["message"]


def test_names_of_the_model(tokenizer_file: Path) -> None:
    with (
        running(tokenizer_file, served_model_name=("gpt-x", "other")) as server,
        httpx.Client(base_url=server.url) as client,
    ):
        (model,) = client.get("/v1/models").json()["data"]
        assert model["id"] == "gpt-x"
        assert client.get("/v1/models/other").status_code == 200
        for name in ("gpt-x", "other", "tgi", None):
            assert post(client, model=name).json()["model"] == (name or "gpt-x")
        assert post(client, model="scripted").status_code == 404


def test_a_model_without_a_chat_template(client: httpx.Client) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}]}
    response = client.post("/v1/chat/completions", json=body)
    assert response.status_code == 400
    assert "no chat template" in response.json()["error"]["message"]


@pytest.mark.parametrize("reasoning_parser", ["none", "think"])
def test_a_chat_template_that_fails(
    tokenizer_file: Path, tmp_path: Path, reasoning_parser: str
) -> None:
    config = tmp_path / "tokenizer_config.json"
    config.write_text(json.dumps({"chat_template": "{{ raise_exception('no such role') }}"}))
    settings = {"tokenizer_config_path": str(config), "reasoning_parser": reasoning_parser}
    with (
        running(tokenizer_file, **settings) as server,
        httpx.Client(base_url=server.url) as client,
    ):
        for path, field, body in (
            ("/v1/responses", "input", {"input": "hi"}),
            ("/v1/chat/completions", "messages", {"messages": [{"role": "user", "content": "hi"}]}),
        ):
            response = client.post(path, json=body)
            assert response.status_code == 400
            error = response.json()["error"]
            assert error["message"].startswith(f"`{field}`: the chat template failed: no such role")
            assert error["param"] == field


def test_a_server_that_stops(tokenizer_file: Path) -> None:
    with running(tokenizer_file) as server, httpx.Client(base_url=server.url) as client:
        server.router.drain()
        for stream in (False, True):
            response = post(client, stream=stream)
            assert response.status_code == 503
            assert response.json()["error"]["code"] == "unavailable"
            assert response.headers["retry-after"].isdigit()


def test_leaving_aborts_every_choice(client: httpx.Client) -> None:
    def num_aborted() -> int:
        (choice,) = post(client, stop="aborts").json()["choices"]
        return int(choice["text"])

    before = num_aborted()
    with client.stream("POST", PATH, json={**ENDLESS, "n": 3, "prompt": ["a", "b"]}) as response:
        assert response.status_code == 200
        next(response.iter_lines())
    for _ in range(1000):
        if num_aborted() == before + 6:
            return
    raise AssertionError("sequences go on without their client")


def test_headers_of_what_it_cost(client: httpx.Client) -> None:
    response = post(client, prompt=["ab", "xyz"])
    assert response.headers["x-prompt-tokens"] == "5"
    assert response.headers["x-generated-tokens"] == "8"
    assert response.headers["x-compute-type"] == "1-cpu"
    streamed = post(client, stream=True)
    assert streamed.headers["x-compute-characters"] == "3"
    assert streamed.headers["cache-control"] == "no-cache"


def test_an_end_without_a_token(client: httpx.Client) -> None:
    end = script(SequenceOutput(0, [], finish=Finish("eos_token", "", 0, 0), started_at=1.0))
    (choice,) = post(client, stop=end).json()["choices"]
    assert (choice["text"], choice["finish_reason"]) == ("", "stop")
