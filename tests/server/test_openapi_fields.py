"""The OpenAPI document has the fields of TGI's API, with types, bounds and descriptions."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

Bounds = dict[str, float]
POSITIVE: Bounds = {"exclusiveMinimum": 0}
UINT32: Bounds = {"minimum": 0, "exclusiveMaximum": 2**32}
INT32: Bounds = {"minimum": -(2**31), "exclusiveMaximum": 2**31}
PARAMETERS: dict[str, tuple[str, Bounds]] = {
    "best_of": ("integer", {**UINT32, "minimum": 1}),
    "temperature": ("number", POSITIVE),
    "repetition_penalty": ("number", POSITIVE),
    "frequency_penalty": ("number", {"minimum": -2, "maximum": 2}),
    "top_k": ("integer", {**INT32, **POSITIVE}),
    "top_p": ("number", {"exclusiveMinimum": 0, "maximum": 1}),
    "typical_p": ("number", {"exclusiveMinimum": 0, "maximum": 1}),
    "max_new_tokens": ("integer", {**UINT32, **POSITIVE}),
    "truncate": ("integer", {**UINT32, **POSITIVE}),
    "seed": ("integer", {"minimum": 0, "exclusiveMaximum": 2**64}),
    "top_n_tokens": ("integer", UINT32),
    "stop": ("array", {}),
    "grammar": ("object", {}),
    "adapter_id": ("string", {}),
    "do_sample": ("boolean", {}),
    "return_full_text": ("boolean", {}),
    "watermark": ("boolean", {}),
    "details": ("boolean", {}),
    "decoder_input_details": ("boolean", {}),
}
NOT_NULL = {"stop", "do_sample", "watermark", "details", "decoder_input_details"}
FIELDS: dict[str, set[str]] = {
    "GenerateBody": {"inputs", "parameters"},
    "CompatGenerateBody": {"inputs", "parameters", "stream"},
    "TokenizeBody": {"inputs"},
    "VertexBody": {"instances"},
    "VertexResponseBody": {"predictions"},
    "GenerateResponseBody": {"generated_text", "details"},
    "DetailsBody": {
        "finish_reason",
        "generated_tokens",
        "seed",
        "prefill",
        "tokens",
        "best_of_sequences",
        "top_tokens",
    },
    "SequenceBody": {
        "generated_text",
        "finish_reason",
        "generated_tokens",
        "seed",
        "prefill",
        "tokens",
        "top_tokens",
    },
    "PrefillTokenBody": {"id", "text", "logprob"},
    "TokenBody": {"id", "text", "logprob", "special"},
    "StreamEventBody": {"index", "token", "top_tokens", "generated_text", "details"},
    "StreamDetailsBody": {"finish_reason", "generated_tokens", "seed", "input_length"},
    "ChatTokensBody": {"tokenize_response", "templated_text"},
    "SimpleTokenBody": {"id", "text", "start", "stop"},
    "ErrorBody": {"error", "error_type"},
    "InfoBody": {
        "model_id",
        "model_sha",
        "model_pipeline_tag",
        "max_concurrent_requests",
        "max_best_of",
        "max_stop_sequences",
        "max_input_tokens",
        "max_total_tokens",
        "validation_workers",
        "max_client_batch_size",
        "router",
        "version",
        "sha",
        "docker_label",
    },
}
NULLABLE_ANSWERS = {
    "PrefillTokenBody": {"logprob"},
    "DetailsBody": {"seed"},
    "StreamEventBody": {"generated_text", "details"},
    "InfoBody": {"model_sha", "sha", "docker_label"},
}
ROUTES = {
    ("post", "/"),
    ("post", "/generate"),
    ("post", "/generate_stream"),
    ("post", "/vertex"),
    ("post", "/invocations"),
    ("post", "/tokenize"),
    ("post", "/chat_tokenize"),
    ("get", "/health"),
    ("get", "/ping"),
    ("get", "/info"),
    ("get", "/metrics"),
}
BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")


@pytest.fixture(scope="module")
def document(client: httpx.Client) -> dict[str, Any]:
    content: dict[str, Any] = client.get("/api-doc/openapi.json").json()
    return content


@pytest.fixture(scope="module")
def schemas(document: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = document["components"]["schemas"]
    return found


def alternatives(field: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = field.get("anyOf", [field])
    return found


def bounds(field: dict[str, Any]) -> Bounds:
    """The tighter of what the field says and what its type says."""
    found: Bounds = {}
    for schema in (*alternatives(field), field):
        found |= {name: schema[name] for name in BOUNDS if name in schema}
    return found


@pytest.mark.parametrize("name", PARAMETERS)
def test_a_parameter(schemas: dict[str, Any], name: str) -> None:
    kind, expected = PARAMETERS[name]
    field = schemas["GenerateParameters"]["properties"][name]
    assert field["description"]
    types = [schema.get("type", "object") for schema in alternatives(field)]
    assert types[0] == kind
    assert ("null" in types) is (name not in NOT_NULL)
    if set(expected) == {"exclusiveMinimum"} and kind == "integer":
        expected = {**UINT32, **expected}
    assert bounds(field).items() >= expected.items()


@pytest.mark.parametrize("name", FIELDS)
def test_the_fields_of_a_body(schemas: dict[str, Any], name: str) -> None:
    properties = schemas[name]["properties"]
    assert set(properties) >= FIELDS[name]
    for field in NULLABLE_ANSWERS.get(name, ()):
        assert {"type": "null"} in alternatives(properties[field])


def test_the_routes(document: dict[str, Any]) -> None:
    found = {(verb, path) for path, verbs in document["paths"].items() for verb in verbs}
    assert found >= ROUTES
    for verb, path in ROUTES:
        operation = document["paths"][path][verb]
        assert operation["description"]
        if verb == "post":
            assert "422" in operation["responses"]
            assert operation["requestBody"]["content"]["application/json"]["examples"]
