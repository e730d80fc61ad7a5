from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path

import httpx
import pytest

from tests.server.running import running

KEY = "Sésame-42"
OPEN = ["/health", "/ping", "/livez", "/readyz", "/info", "/metrics"]
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


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/", BODY),
        ("/generate", BODY),
        ("/generate_stream", BODY),
        ("/invocations", BODY),
        ("/vertex", {"instances": [BODY]}),
        ("/tokenize", {"inputs": "a"}),
    ],
)
def test_the_key_opens(guarded: httpx.Client, path: str, body: dict[str, object]) -> None:
    response = guarded.post(path, json=body, headers=authorization(f"Bearer {KEY}"))
    assert response.status_code == 200


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        KEY,
        "Bearer",
        f"Bearer {KEY}x",
        f"Bearer {KEY[:-1]}",
        f"Bearer {KEY.lower()}",
        f"Bearer  {KEY}",
        f"Bearer{KEY}",
        f"Bearer {KEY}, Bearer {KEY}",
        "Basic a",
    ],
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
        ("POST", "/docs/../generate"),
        ("POST", "/v1/../generate"),
        ("POST", "/%67enerate"),
        ("POST", "/generate?x=1"),
        ("POST", "/generate;x"),
        ("GET", "/HEALTH"),
        ("GET", "//metrics"),
        ("GET", "/docs/../v1/models"),
        ("OPTIONS", "/generate"),
        ("HEAD", "/generate"),
        ("GET", "/v1/models"),
    ],
)
def test_nothing_else_does(guarded: httpx.Client, method: str, path: str, text: str | None) -> None:
    headers = {} if text is None else {"authorization": text.encode()}
    host = f"{guarded.base_url.host}:{guarded.base_url.port}"
    with closing(HTTPConnection(host, timeout=10)) as connection:
        connection.request(method, path, body=b"x" * 100, headers=headers)  # the path as it stands
        response = connection.getresponse()
        assert response.status == 401
        assert not response.read() or path.startswith("/v1/")  # there the body is OpenAI's


def test_of_all_routes_only_those_that_are_named_are_open(guarded: httpx.Client) -> None:
    document = guarded.get("/api-doc/openapi.json").json()
    open_routes = {("get", path) for path in OPEN}
    for path, verbs in document["paths"].items():
        for verb in verbs:
            response = guarded.request(verb, path, json={})
            assert (response.status_code != 401) is ((verb, path) in open_routes), (verb, path)


@pytest.mark.parametrize("path", ["/", *OPEN, "/docs", "/api-doc/openapi.json"])
def test_what_is_open(guarded: httpx.Client, path: str) -> None:
    assert guarded.get(path).status_code == 200


def test_the_documentation_asks_for_the_key(guarded: httpx.Client) -> None:
    document = guarded.get("/api-doc/openapi.json").json()
    assert document["paths"]["/generate"]["post"]["security"] == [{"HTTPBearer": []}]
    assert "security" not in document["paths"]["/info"]["get"]


def test_without_a_key_all_is_open(client: httpx.Client) -> None:
    assert client.post("/generate", json=BODY).status_code == 200
    assert client.post("/generate", json=BODY, headers=authorization("Bearer x")).is_success
