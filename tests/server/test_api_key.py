from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.server.running import running

KEY = "Sésame-42"
BODY = {"inputs": "a", "parameters": {"max_new_tokens": 1}}


@pytest.fixture(scope="module")
def guarded(tokenizer_file: Path) -> Iterator[httpx.Client]:
    with (
        running(tokenizer_file, api_key=KEY) as server,
        httpx.Client(base_url=server.url) as client,
    ):
        yield client


def authorization(text: str) -> dict[bytes, bytes]:
    return {b"authorization": text.encode()}


@pytest.mark.parametrize("path", ["/", "/generate", "/generate_stream", "/tokenize"])
def test_the_key_opens(guarded: httpx.Client, path: str) -> None:
    body = {"inputs": "a"} if path == "/tokenize" else BODY
    response = guarded.post(path, json=body, headers=authorization(f"Bearer {KEY}"))
    assert response.status_code == 200


@pytest.mark.parametrize(
    "text", [None, "", KEY, "Bearer", f"Bearer {KEY}x", f"Bearer {KEY.lower()}", "Basic a"]
)
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/"),
        ("POST", "/generate"),
        ("POST", "/generate_stream"),
        ("POST", "/tokenize"),
        ("POST", "//generate"),
        ("POST", "/generate/"),
        ("POST", "/Generate"),
        ("POST", "/health"),
        ("OPTIONS", "/generate"),
        ("HEAD", "/generate"),
        ("GET", "/v1/models"),
    ],
)
def test_nothing_else_does(guarded: httpx.Client, method: str, path: str, text: str | None) -> None:
    headers = None if text is None else authorization(text)
    url = str(guarded.base_url) + path  # as it stands
    response = guarded.request(method, url, content=b"x" * 100, headers=headers)
    assert (response.status_code, response.content) == (401, b"")


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/health",
        "/ping",
        "/livez",
        "/readyz",
        "/info",
        "/metrics",
        "/docs",
        "/api-doc/openapi.json",
    ],
)
def test_what_is_open(guarded: httpx.Client, path: str) -> None:
    assert guarded.get(path).status_code == 200


def test_the_documentation_asks_for_the_key(guarded: httpx.Client) -> None:
    document = guarded.get("/api-doc/openapi.json").json()
    assert document["paths"]["/generate"]["post"]["security"] == [{"HTTPBearer": []}]
    assert "security" not in document["paths"]["/info"]["get"]


def test_without_a_key_all_is_open(client: httpx.Client) -> None:
    assert client.post("/generate", json=BODY).status_code == 200
    assert client.post("/generate", json=BODY, headers=authorization("Bearer x")).is_success
