from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from tests.server.running import running

JSON = {"content-type": "application/json"}
BODY = {"inputs": "a", "parameters": {"max_new_tokens": 2}}


def test_a_body_with_inputs_is_that_of_the_compat_route(client: httpx.Client) -> None:
    for given in (BODY, {**BODY, "stream": True}, {**BODY, "inputs": ""}, {"inputs": 1}):
        there = client.post("/", json=given)
        here = client.post("/invocations", json=given)
        assert (here.status_code, here.text) == (there.status_code, there.text)
        assert here.headers["content-type"] == there.headers["content-type"]
        assert ("x-compute-type" in here.headers) == (there.status_code == 200)


@pytest.mark.parametrize(
    ("field", "path"), [("messages", "/v1/chat/completions"), ("prompt", "/v1/completions")]
)
def test_other_bodies_go_to_their_routes(client: httpx.Client, field: str, path: str) -> None:
    there = client.post(path, json={field: 5})
    here = client.post("/invocations", json={field: 5})
    assert 400 <= here.status_code < 500
    assert (here.status_code, here.text) == (there.status_code, there.text)


@pytest.mark.parametrize(
    ("body", "status", "reason"),
    [
        ("{}", 422, "data did not match any variant of untagged enum SagemakerRequest"),
        ('{"input": "a"}', 422, "`inputs`, `messages` or `prompt` must be there"),
        ("[]", 422, "expected an object"),
        ("", 400, "Failed to parse the request body as JSON: "),
        ('{"inputs": NaN}', 400, "NaN is not JSON"),
    ],
)
def test_what_no_route_takes(client: httpx.Client, body: str, status: int, reason: str) -> None:
    response = client.post("/invocations", content=body, headers=JSON)
    assert response.status_code == status
    assert reason in response.text


def test_another_content_type(client: httpx.Client) -> None:
    response = client.post("/invocations", content='{"inputs": "a"}')
    assert response.status_code == 415


def test_the_payload_limit_and_the_key_hold_here_too(tokenizer_file: Path) -> None:
    with running(tokenizer_file, api_key="k", payload_limit=1000) as server:
        url = f"{server.url}/invocations"
        assert httpx.post(url, json=BODY).status_code == 401
        key = {"authorization": "Bearer k"}
        assert httpx.post(url, json=BODY, headers=key).status_code == 200
        assert httpx.post(url, json={"inputs": "a" * 2000}, headers=key).status_code == 413
