"""Errors under /v1/ that no route of OpenAI's dialect makes, and what browsers may send."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from starlette.types import Receive, Scope, Send

from tests.server.running import running
from tokenloom_server.middleware.openai_errors import OpenAIErrors

FIELDS = {"message", "type", "param", "code"}


@pytest.fixture(scope="module")
def client(tokenizer_file: Path) -> Iterator[httpx.Client]:
    with (
        running(tokenizer_file, api_key="secret", payload_limit=1000) as server,
        httpx.Client(base_url=server.url, timeout=30) as http,
    ):
        yield http


def test_a_key_that_is_missing_or_wrong(client: httpx.Client) -> None:
    for path in ("/v1/chat/completions", "/v1/completions", "/v1/nothing"):
        for headers in ({}, {"authorization": "Bearer wrong"}):
            response = client.post(path, json={}, headers=headers)
            assert response.status_code == 401
            error = response.json()["error"]
            assert set(error) == FIELDS
            assert (error["type"], error["code"]) == ("authentication_error", "invalid_api_key")
    assert client.get("/v1/models").status_code == 401
    response = client.post("/generate", json={})
    assert response.status_code == 401
    assert response.content == b"", "TGI's routes keep their form"


def test_the_rest(client: httpx.Client) -> None:
    key = {"authorization": "Bearer secret"}
    large = client.post("/v1/completions", json={"prompt": "a" * 2000}, headers=key)
    assert (large.status_code, large.json()["error"]["code"]) == (413, "too_large")
    assert "length limit" in large.json()["error"]["message"]
    pieces = iter([b'{"prompt": "', b"a" * 2000, b'"}'])  # without a stated length
    headers = {**key, "content-type": "application/json"}
    assert client.post("/v1/completions", content=pieces, headers=headers).json() == large.json()
    missing = client.get("/v1/nothing", headers=key)
    assert (missing.status_code, missing.json()["error"]["message"]) == (404, "Not Found")
    method = client.get("/v1/completions", headers=key)
    assert (method.status_code, method.json()["error"]["code"]) == (405, "method_not_allowed")
    assert method.headers["allow"] == "POST"


async def test_a_bug_is_an_error_in_the_same_form_and_goes_on_to_the_log() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        raise RuntimeError("bug")

    transport = httpx.ASGITransport(OpenAIErrors(app), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
        response = await http.post("/v1/completions")
        assert response.status_code == 500
        assert response.json()["error"]["type"] == "server_error"
    raising = httpx.ASGITransport(OpenAIErrors(app))
    async with httpx.AsyncClient(transport=raising, base_url="http://test") as http:
        with pytest.raises(RuntimeError, match="bug"):
            await http.post("/v1/completions")


def test_browsers_may_send_what_clients_send(client: httpx.Client) -> None:
    asked = {
        "origin": "http://page.example",
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization,content-type,x-stainless-os",
    }
    response = client.options("/v1/chat/completions", headers=asked)
    assert response.status_code == 200
    assert "x-stainless-os" in response.headers["access-control-allow-headers"]
    refused = client.post("/v1/completions", json={}, headers={"origin": "http://page.example"})
    assert refused.headers["access-control-allow-origin"] == "*"
    assert "x-request-id" in refused.headers["access-control-expose-headers"].lower()
    assert refused.headers["x-request-id"]
