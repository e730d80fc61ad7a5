"""Bodies of all routes with a value of each JSON type in each place."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

import httpx

HALF = "\ud800"
VALUES: list[Any] = [
    None,
    True,
    0,
    -1,
    1.5,
    10**30,
    "",
    "x",
    HALF,
    [],
    [None],
    [[]],
    [{}],
    {},
    {"type": {}},
    {"type": ["text"]},
    {"x": None},
]
SCHEMA = {"type": "object", "properties": {"a": {"enum": ["x"]}}, "required": ["a"]}
CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": {"a": "x"}}}
MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": [{"type": "text", "text": "x"}]},
    {"role": "user", "content": "x", "name": "y"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "content": "x", "tool_call_id": "1"},
]
FUNCTION = {"name": "f", "description": "x", "parameters": SCHEMA, "strict": True}
ITEMS = [
    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "x"}]},
    {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "x"}]},
    {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "1", "output": "x"},
]
TAG = {
    "triggers": ["<f>"],
    "structures": [{"begin": "<f>", "schema": {"type": "null"}, "end": "</f>"}],
}
FORMAT_PARTS = [
    {"type": "const_string", "value": "x"},
    {"type": "json_schema", "json_schema": {"type": "null"}},
    {"type": "regex", "pattern": "x"},
    {"type": "or", "elements": [{"type": "any_text"}]},
    {"type": "tag", "begin": "<", "content": {"type": "any_text"}, "end": ">"},
]
GENERATE = {
    "inputs": "x",
    "parameters": {
        "max_new_tokens": 1,
        "stop": ["y"],
        "logit_bias": {"1": 1.0},
        "grammar": {"type": "json", "value": SCHEMA, "whitespace_pattern": " ?"},
    },
}
CHAT = {
    "messages": MESSAGES,
    "max_tokens": 1,
    "tools": [{"type": "function", "function": FUNCTION}],
    "tool_choice": "none",
    "stream": True,
    "stream_options": {"include_usage": True},
    "chat_template_kwargs": {"x": 1},
    "documents": [{"title": "x"}],
    "metadata": {"x": "y"},
}
STRUCTURED_CHAT = {
    "messages": MESSAGES[1:2],
    "max_tokens": 1,
    "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}},
    "chat_template_kwargs": {"x": 1},
}
RESPONSE = {
    "input": ITEMS,
    "max_output_tokens": 1,
    "tools": [{"type": "function", **FUNCTION}],
    "tool_choice": "none",
    "text": {"format": {"type": "json_schema", "name": "x", "schema": SCHEMA}},
    "reasoning": {"effort": "low"},
    "metadata": {"x": "y"},
}
BODIES: list[tuple[str, dict[str, Any]]] = [
    ("/generate", GENERATE),
    (
        "/generate",
        {
            "inputs": "x",
            "parameters": {
                "max_new_tokens": 1,
                "grammar": {"type": "structural_tag", "value": TAG},
            },
        },
    ),
    ("/", {**GENERATE, "stream": True}),
    ("/tokenize", {"inputs": "x", "add_special_tokens": True}),
    ("/chat_tokenize", CHAT),
    ("/vertex", {"instances": [GENERATE, STRUCTURED_CHAT]}),
    ("/invocations", {"prompt": ["x"], "max_tokens": 1}),
    ("/v1/completions", {"prompt": [[1]], "max_tokens": 1, "stop": ["x"], "logit_bias": {"1": 1}}),
    (
        "/v1/completions",
        {
            "prompt": "x",
            "max_tokens": 1,
            "structured_outputs": {
                "structural_tag": {
                    "type": "structural_tag",
                    "format": {"type": "sequence", "elements": FORMAT_PARTS},
                }
            },
        },
    ),
    ("/v1/chat/completions", CHAT),
    ("/v1/chat/completions", STRUCTURED_CHAT),
    ("/v1/responses", RESPONSE),
]


def mutations(value: Any) -> Iterator[Any]:  # noqa: ANN401 - JSON
    """The value with each of VALUES in each of its places, one at a time."""
    yield from VALUES
    if isinstance(value, dict):
        for key, child in value.items():
            for changed in mutations(child):
                yield {**value, key: changed}
    elif isinstance(value, list):
        for index, child in enumerate(value):
            for changed in mutations(child):
                yield [*value[:index], changed, *value[index + 1 :]]


def documented(client: httpx.Client) -> Iterator[tuple[str, dict[str, Any]]]:
    """Minimal bodies with each of VALUES in each documented field of each route."""
    document = client.get("/api-doc/openapi.json").json()
    minimal = {"inputs": "x", "prompt": "x", "input": "x", "messages": MESSAGES[:2]}
    for path, methods in document["paths"].items():
        content = methods.get("post", {}).get("requestBody", {}).get("content", {})
        name = content.get("application/json", {}).get("schema", {}).get("$ref", "").split("/")[-1]
        fields = document["components"]["schemas"].get(name, {}).get("properties", {})
        required = {field: value for field, value in minimal.items() if field in fields}
        for field in fields:
            for value in VALUES:
                yield path, {**required, "max_tokens": 1, field: value}


def faults(client: httpx.Client, bodies: Iterable[tuple[str, Any]]) -> tuple[int, list[str]]:
    """Number of bodies sent, and those answered with a status of 500 or more."""
    found, number = [], 0
    for path, body in bodies:
        number += 1
        data = json.dumps(body).encode()
        try:
            answer = client.post(path, content=data, headers={"content-type": "application/json"})
            fault = answer.text[:200] if answer.status_code >= 500 else ""
        except httpx.TransportError as error:
            fault = repr(error)
        if fault:
            found.append(f"{path} {data.decode()[:500]} {fault}")
    return number, found
