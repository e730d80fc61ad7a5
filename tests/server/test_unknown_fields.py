"""Unknown fields of TGI's routes are ignored and named, or refused with --strict-fields."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.server.running import RunningServer, running

HEADER = "x-ignored-fields"
OLD = {"inputs": "Hi", "options": {"use_cache": False}, "parameters": {"max_new_tokens": 2}}
OLD_PARAMETERS = {"inputs": "Hi", "parameters": {"max_new_tokens": 2, "num_return_sequences": 1}}


@pytest.fixture(scope="module")
def strict_client(tokenizer_file: Path) -> Iterator[httpx.Client]:
    with (
        running(tokenizer_file, strict_fields=True) as server,
        httpx.Client(base_url=server.url) as client,
    ):
        yield client


def num_ignored(client: httpx.Client) -> float:
    lines = client.get("/metrics").text.splitlines()
    return float(next(line for line in lines if line.startswith("tgi_request_ignored_")).split()[1])


@pytest.mark.parametrize("path", ["/generate", "/generate_stream", "/", "/invocations"])
@pytest.mark.parametrize(
    ("body", "names"), [(OLD, "options"), (OLD_PARAMETERS, "parameters.num_return_sequences")]
)
def test_they_are_ignored_named_and_counted(
    client: httpx.Client, path: str, body: dict[str, Any], names: str
) -> None:
    before = num_ignored(client)
    response = client.post(path, json=body)
    assert response.status_code == 200
    assert response.headers[HEADER] == names
    assert num_ignored(client) == before + 1
    known = {"inputs": "Hi", "parameters": {"max_new_tokens": 2}}
    expected = client.post(path, json=known)
    assert HEADER not in expected.headers
    assert response.text == expected.text


@pytest.mark.parametrize(
    ("path", "body", "names"),
    [
        ("/tokenize", {"inputs": "Hi", "parameters": None}, "parameters"),
        (
            "/vertex",
            {"instances": [OLD_PARAMETERS], "parameters": {}},
            "parameters, instances.0.parameters.num_return_sequences",
        ),
        (
            "/generate",
            {**OLD, "a\r\nset-cookie: b": 1, "\u00e9": 2},
            "options, a%0D%0Aset-cookie%3A%20b, %C3%A9",
        ),
    ],
)
def test_names_of_several_kinds(
    client: httpx.Client, path: str, body: dict[str, Any], names: str
) -> None:
    response = client.post(path, json=body)
    assert response.status_code == 200
    assert response.headers[HEADER] == names
    assert "set-cookie" not in response.headers


@pytest.mark.parametrize(
    ("path", "body", "reason"),
    [
        ("/generate", OLD, "unknown field `options`"),
        ("/generate_stream", OLD_PARAMETERS, "parameters: unknown field `num_return_sequences`"),
        ("/", OLD, "unknown field `options`"),
        ("/vertex", {"instances": [OLD]}, "instances.0: unknown field `options`"),
        ("/tokenize", {"inputs": "Hi", "parameters": 1}, "unknown field `parameters`"),
    ],
)
def test_strict_fields_refuses_them(
    strict_client: httpx.Client, path: str, body: dict[str, Any], reason: str
) -> None:
    response = strict_client.post(path, json=body)
    assert response.status_code == 422
    assert response.text.endswith(f": {reason}")


@pytest.mark.parametrize(
    ("field", "value"), [("grammar", {"type": "regex", "value": "a", "lenient": True})]
)
def test_a_grammar_has_no_unknown_fields(client: httpx.Client, field: str, value: object) -> None:
    response = client.post("/generate", json={"inputs": "Hi", "parameters": {field: value}})
    assert response.status_code == 422
    assert response.text.endswith("parameters.grammar: unknown field `lenient`")


def test_openais_routes_refuse_them(client: httpx.Client) -> None:
    response = client.post("/v1/completions", json={"prompt": "Hi", "options": {}})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "options"


@pytest.mark.parametrize(
    ("method", "path", "body", "labels"),
    [
        ("POST", "/v1/completions", b"{", ("POST", "/v1/completions", 400)),
        ("POST", "/v1/chat/completions", b'{"x": 1}', ("POST", "/v1/chat/completions", 400)),
        ("POST", "/generate", b"{}", ("POST", "/generate", 422)),
        ("POST", "/generate", b'{"inputs": "a"}', ("POST", "/generate", 200)),
        ("PUT", "/generate", b"", ("other", "/generate", 405)),
        ("GET", "/nowhere", b"", ("GET", "other", 404)),
    ],
)
def test_each_response_is_counted(
    server: RunningServer,
    client: httpx.Client,
    method: str,
    path: str,
    body: bytes,
    labels: tuple[str, str, int],
) -> None:
    def count() -> float:
        verb, route, status = labels
        sample = {"method": verb, "route": route, "status": str(status)}
        return server.metrics.registry.get_sample_value("tgi_http_responses_total", sample) or 0

    before = count()
    response = client.request(
        method, path, content=body, headers={"content-type": "application/json"}
    )
    assert response.status_code == labels[2]
    assert count() == before + 1
