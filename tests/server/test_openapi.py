from __future__ import annotations

import json
import re
from typing import Any

import httpx
import pytest

EXAMPLES = {
    "/generate": {"plain", "sampled", "schema", "regex"},
    "/generate_stream": {"plain", "sampled", "schema", "regex"},
    "/": {"plain", "streamed"},
    "/vertex": {"plain", "chat"},
    "/invocations": {"plain", "streamed", "chat", "prompt"},
    "/tokenize": {"plain"},
}


@pytest.fixture
def document(client: httpx.Client) -> dict[str, Any]:
    content: dict[str, Any] = client.get("/api-doc/openapi.json").json()
    return content


def examples(document: dict[str, Any], path: str) -> dict[str, Any]:
    content = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]
    return {name: example["value"] for name, example in content["examples"].items()}


@pytest.mark.parametrize("path", EXAMPLES)
def test_every_example_works_as_it_stands(
    client: httpx.Client, document: dict[str, Any], path: str
) -> None:
    found = examples(document, path)
    assert set(found) == EXAMPLES[path]
    for example in found.values():
        if "messages" in json.dumps(example):  # the scripted engine has no chat template
            continue
        response = client.post(path, json=_without_stop(example))
        assert response.status_code == 200, response.text
        assert response.content


def _without_stop(example: dict[str, Any]) -> dict[str, Any]:
    """The scripted engine reads its script from there."""
    if "parameters" not in example:
        return example
    parameters = {name: value for name, value in example["parameters"].items() if name != "stop"}
    return {**example, "parameters": parameters}


def test_every_route_is_described(document: dict[str, Any]) -> None:
    for verbs in document["paths"].values():
        assert all(operation["description"] for operation in verbs.values())
    schemas = document["components"]["schemas"]
    for path in ("/generate", "/generate_stream", "/"):
        responses = document["paths"][path]["post"]["responses"]
        assert {"200", "422", "424", "429", "503"} <= set(responses)
    stream = document["paths"]["/generate_stream"]["post"]["responses"]["200"]["content"]
    assert set(stream) == {"text/event-stream"}
    assert set(schemas["GenerateResponseBody"]["properties"]) == {
        "generated_text",
        "details",
        "warnings",
    }
    parameters = schemas["GenerateParameters"]
    assert parameters["additionalProperties"] is True, "unknown fields are ignored"
    assert all(field["description"] for field in parameters["properties"].values())


def test_references_lead_somewhere(document: dict[str, Any]) -> None:
    names = re.findall(r'"#/components/schemas/(\w+)"', json.dumps(document))
    assert names
    assert set(names) <= set(document["components"]["schemas"])


def test_the_page_needs_no_other_host(client: httpx.Client) -> None:
    page = client.get("/docs").text
    assert "/api-doc/openapi.json" in page
    sources = re.findall(r'(?:src|href)="([^"]+)"', page)
    assert len(sources) >= 3
    for source in sources:
        assert source.startswith("/docs/")
        assert client.get(source).status_code == 200
