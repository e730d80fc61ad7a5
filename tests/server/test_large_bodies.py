"""Bodies as large as the limit: each dialect says of them what it says of small ones."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

HEADERS = {"content-type": "application/json"}
NUM_BYTES = 1_900_000
MESSAGES = [{"role": "user", "content": "a"}]


def post(client: httpx.Client, path: str, body: dict[str, Any]) -> httpx.Response:
    return client.post(path, content=json.dumps(body), headers=HEADERS, timeout=60)


def parameters(**given: object) -> dict[str, Any]:
    return {"inputs": "a", "parameters": given}


@pytest.mark.parametrize(
    ("path", "repeated", "body"),
    [
        ("/generate", 1, lambda many: parameters(stop=many)),
        ("/generate", {}, lambda many: parameters(grammar={"type": "choice", "value": many})),
        ("/generate_stream", {}, lambda many: parameters(stop=many)),
        ("/", [], lambda many: parameters(stop=many)),
        ("/", 0.5, lambda many: {"inputs": many}),
        ("/tokenize", 1, lambda many: {"inputs": many}),
        ("/vertex", {}, lambda many: {"instances": many}),
        ("/invocations", 1, lambda many: parameters(stop=many)),
        ("/invocations", {}, lambda many: {"messages": many}),
        ("/v1/completions", 1, lambda many: {"prompt": "a", "stop": many}),
        ("/v1/completions", None, lambda many: {"prompt": many}),
        ("/v1/chat/completions", {}, lambda many: {"messages": many}),
        ("/v1/chat/completions", "a", lambda many: {"messages": MESSAGES, "documents": many}),
        ("/v1/responses", {}, lambda many: {"input": many}),
        ("/chat_tokenize", 1, lambda many: {"messages": many}),
    ],
)
def test_a_large_body_of_the_wrong_shape(
    client: httpx.Client,
    path: str,
    repeated: object,
    body: Callable[[list[object]], dict[str, Any]],
) -> None:
    small = post(client, path, body([repeated]))
    large = post(client, path, body([repeated] * (NUM_BYTES // len(json.dumps(repeated) + ", "))))
    assert small.status_code in (400, 422)
    assert (large.status_code, large.text) == (small.status_code, small.text)


def test_a_large_body_with_many_unknown_fields(client: httpx.Client) -> None:
    fields = {f"x{i}": 1 for i in range(120_000)}
    response = post(client, "/generate", parameters(max_new_tokens=1, **fields))
    assert response.status_code == 200
    named = response.headers["x-ignored-fields"]
    assert named.startswith("parameters.x0, ") and named.endswith(", and 119990 more")


@pytest.mark.parametrize("end", [b"", b"}x", b"]"])
def test_a_large_body_that_is_no_json(client: httpx.Client, end: bytes) -> None:
    content = b'{"inputs": "' + b"a" * NUM_BYTES + b'"' + end
    response = client.post("/generate", content=content, headers=HEADERS)
    assert response.status_code == 400
    assert response.text.startswith("Failed to parse the request body as JSON: ")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/generate", {**parameters(max_new_tokens=1, truncate=1), "inputs": "a" * 100_000}),
        (
            "/v1/completions",
            {"prompt": "a" * 100_000, "max_tokens": 1, "truncate_prompt_tokens": 1},
        ),
        ("/v1/completions", {"prompt": [1] * 10_000, "max_tokens": 1, "truncate_prompt_tokens": 1}),
        ("/tokenize", {"inputs": "a" * 20_000}),
        ("/invocations", {**parameters(max_new_tokens=1, truncate=1), "inputs": "a" * 100_000}),
        (
            "/vertex",
            {"instances": [{**parameters(max_new_tokens=1, truncate=1), "inputs": "a" * 100_000}]},
        ),
    ],
)
def test_a_large_body_that_is_right(client: httpx.Client, path: str, body: dict[str, Any]) -> None:
    response = post(client, path, body)
    assert response.status_code == 200, response.text


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (parameters(stop=["x"] * 300_000), "supports up to 4 stop sequences. Given: 300000"),
        (parameters(logit_bias={str(i): 1 for i in range(100_000)}), "supports up to 1024 tokens"),
        (parameters(logits_processors=[{"name": "x"}] * 1000), "supports up to 8"),
        (parameters(logits_processors=[{"name": "x"}] * 100_000), "at most 1000 items"),
    ],
)
def test_more_than_there_may_be(client: httpx.Client, body: dict[str, Any], reason: str) -> None:
    response = post(client, "/generate", body)
    assert response.status_code == 422
    assert reason in response.text


def test_many_prompts(client: httpx.Client) -> None:
    response = post(client, "/v1/completions", {"prompt": [""] * 400_000})
    assert response.status_code == 400
    assert "`prompt` must have <= 4 prompts" in response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("path", "name", "body"),
    [
        ("/v1/chat/completions", "messages", {"messages": MESSAGES * 1000}),
        ("/v1/responses", "input", {"input": MESSAGES * 1000}),
    ],
)
def test_a_long_chat(client: httpx.Client, path: str, name: str, body: dict[str, Any]) -> None:
    """It is read to the end, where the tokenizer's folder turns out to have no chat template."""
    response = post(client, path, body)
    assert response.status_code == 400
    assert f"no chat template, so `{name}` cannot" in response.json()["error"]["message"]
