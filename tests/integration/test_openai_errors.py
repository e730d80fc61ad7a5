"""What OpenAI's routes say of requests that are wrong, and that the server lives on."""

from __future__ import annotations

import concurrent.futures
import json
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.integration.openai_api import CHAT, COMPLETIONS, chat, complete, fault
from tests.integration.serving import Json, Server

RESPONSES = "/v1/responses"
HELLO: Json = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
PROMPT: Json = {"prompt": "Hi", "max_tokens": 1}
INPUT: Json = {"input": "Hi", "max_output_tokens": 1}
BODIES: dict[str, tuple[str, Json]] = {
    COMPLETIONS: ("CompletionBody", PROMPT),
    CHAT: ("ChatBody", HELLO),
    RESPONSES: ("ResponsesBody", INPUT),
}
BIG: Json = {
    "name": "big",
    "strict": True,
    "schema": {"type": "object", "properties": {"id": {"const": 1234567890123456789}}},
}
BIG_TOOL: Json = {"name": "big", "parameters": BIG["schema"]}
V = 49152
SECONDS = 5.0
"""Refusing takes none of them; the machine may be slow."""


@pytest.fixture(autouse=True)
def alive(server: Server) -> Iterator[None]:
    """The same engine answers after each test."""
    pid = server.engine_pid()
    yield
    assert complete(server, "Hi", max_tokens=1)["usage"]["completion_tokens"] == 1
    assert server.engine_pid() == pid


@pytest.mark.parametrize(
    ("extra", "param"),
    [
        ({"response_format": {"type": "json_schema", "json_schema": BIG}}, "response_format"),
        ({"structured_outputs": {"json": BIG["schema"]}}, "structured_outputs"),
        (
            {"tools": [{"type": "function", "function": {**BIG_TOOL, "strict": True}}]},
            "tools[0].function.parameters",
        ),
    ],
)
def test_numbers_that_cannot_be_enforced_are_named(server: Server, extra: Json, param: str) -> None:
    error = fault(server, CHAT, {**HELLO, **extra})
    assert error["param"] == param
    assert "1234567890123456789 cannot be enforced exactly" in error["message"]
    assert "(at #/properties/id/const)" in error["message"]


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        ([V + 1000], f"`prompt` must have token ids >= 0 and < {V}. Given: {V + 1000}"),
        ([-1], "Given: -1"),
        ([1.5], "Given: 1.5"),
        ([True], "Given: True"),
        ([1, "a"], "Given: 'a'"),
        ([], "`prompt` must not be empty"),
        ([[]], "must not be empty"),
        ([[1], [V + 7]], f"prompt 1: `prompt` must have token ids >= 0 and < {V}. Given: {V + 7}"),
        ([[1], [1.5]], "`prompt` 1"),
        ([["a"]], "`prompt` 0"),
        ("", "`prompt` cannot be empty"),
        (["a", ""], "prompt 1: `prompt` cannot be empty"),
        (None, "`prompt`"),
        (3, "`prompt`"),
        ("\ud800", "not valid Unicode"),
    ],
)
def test_prompts_that_are_none(server: Server, prompt: Any, words: str) -> None:  # noqa: ANN401
    error = fault(server, COMPLETIONS, {**PROMPT, "prompt": prompt})
    assert words in error["message"]
    assert error["type"] == "invalid_request_error"


REFUSED: list[tuple[str, Json, str]] = [
    (COMPLETIONS, {"suffix": "x"}, "suffix"),
    (COMPLETIONS, {"best_of": 100000}, "best_of"),
    (COMPLETIONS, {"logprobs": 1000000}, "logprobs"),
    (COMPLETIONS, {"logprobs": True}, "logprobs"),
    (COMPLETIONS, {"max_tokens": -1}, "max_tokens"),
    (COMPLETIONS, {"prompt": ["a"] * 100000}, "prompt"),
    (COMPLETIONS, {"echo": "yes"}, "echo"),
    (COMPLETIONS, {"messages": []}, "messages"),
    (CHAT, {"messages": []}, "messages"),
    (CHAT, {"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
    (CHAT, {"messages": [{"role": "user"}]}, "messages[0].content"),
    (CHAT, {"messages": [{"role": "user", "content": []}]}, "messages[0].content"),
    (CHAT, {"messages": [{"role": "user", "content": ["x"]}]}, "messages[0].content[0]"),
    (
        CHAT,
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
        "messages[0].content[0]",
    ),
    (
        CHAT,
        {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
        "messages[0].content[0].text",
    ),
    (CHAT, {"max_tokens": 0}, "max_tokens"),
    (CHAT, {"max_tokens": 2, "max_completion_tokens": 3}, "max_tokens"),
    (CHAT, {"top_logprobs": 21, "logprobs": True}, "top_logprobs"),
    (CHAT, {"n": 0}, "n"),
    (CHAT, {"n": 100000}, "n"),
    (CHAT, {"audio": {}}, "audio"),
    (CHAT, {"tool_prompt": "Use these"}, "tool_prompt"),
    (CHAT, {"functions": []}, "functions"),
    (CHAT, {"prediction": {"type": "content"}}, "prediction"),
    (CHAT, {"modalities": ["audio"]}, "modalities[0]"),
    (CHAT, {"service_tier": "flex"}, "service_tier"),
    (CHAT, {"stream": "true"}, "stream"),
    (CHAT, {"stop": ["a", "b", "c", "d", "e"]}, "stop"),
    (CHAT, {"stop": [""]}, "stop"),
    (CHAT, {"stop": ["a" * 1_000_000]}, "stop"),
    (CHAT, {"stop": ["a"] * 10000}, "stop"),
    (CHAT, {"store": True}, "store"),
    (CHAT, {"stream_options": {"include_usage": True}}, "stream_options"),
    (CHAT, {"stream": True, "stream_options": {"foo": True}}, "stream_options.foo"),
    (CHAT, {"temperature": -1}, "temperature"),
    (CHAT, {"temperature": "nan"}, "temperature"),
    (CHAT, {"temperature": True}, "temperature"),
    (CHAT, {"top_p": 1.1}, "top_p"),
    (CHAT, {"min_p": -0.1}, "min_p"),
    (CHAT, {"top_k": -2}, "top_k"),
    (CHAT, {"presence_penalty": 2.1}, "presence_penalty"),
    (CHAT, {"frequency_penalty": -2.1}, "frequency_penalty"),
    (CHAT, {"repetition_penalty": 0}, "repetition_penalty"),
    (CHAT, {"min_tokens": 2}, "min_tokens"),
    (CHAT, {"stop_token_ids": [V + 5]}, "stop_token_ids"),
    (CHAT, {"stop_token_ids": [-1]}, "stop_token_ids"),
    (CHAT, {"logit_bias": {"a": 1}}, "logit_bias"),
    (CHAT, {"logit_bias": {str(V): 1}}, "logit_bias"),
    (CHAT, {"logit_bias": {"1": 101}}, "logit_bias"),
    (CHAT, {"logit_bias": {str(id): 1 for id in range(20000)}}, "logit_bias"),
    (CHAT, {"seed": 2**64}, "seed"),
    (CHAT, {"request_id": "a\r\nb"}, "request_id"),
    (CHAT, {"logits_processors": [{"name": "nobody's"}]}, "logits_processors"),
    (CHAT, {"unknown": None}, "unknown"),
    (CHAT, {"Temperature": 1}, "Temperature"),
    (CHAT, {"response_format": {"type": "json"}}, "response_format.value"),
    (CHAT, {"structured_outputs": {"regex": "a", "lenient": True}}, "structured_outputs"),
    (CHAT, {"structured_outputs": {"choice": ["a"], "lenient": True}}, "structured_outputs"),
    (CHAT, {"function_call": "auto"}, "function_call"),
    (CHAT, {"web_search_options": {}}, "web_search_options"),
    (CHAT, {"verbosity": "low"}, "verbosity"),
    (CHAT, {"prompt_cache_retention": "24h"}, "prompt_cache_retention"),
    (CHAT, {"tools": [{"type": "custom", "custom": {"name": "a"}}]}, "tools[0].type"),
    (RESPONSES, {"input": []}, "input"),
    (RESPONSES, {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
     "input[0].content[0]"),
    (RESPONSES, {"max_output_tokens": 0}, "max_output_tokens"),
    (RESPONSES, {"max_tool_calls": 1}, "max_tool_calls"),
    (RESPONSES, {"prompt": {"id": "x"}}, "prompt"),
    (RESPONSES, {"stream": True, "stream_options": {}}, "stream_options"),
    (RESPONSES, {"text": {"verbosity": "low"}}, "text.verbosity"),
    (RESPONSES, {"reasoning": {"summary": "auto"}}, "reasoning.summary"),
    (RESPONSES, {"include": ["file_search_call.results"]}, "include[0]"),
    (RESPONSES, {"tool_choice": {"type": "allowed_tools"}}, "tool_choice"),
    (RESPONSES, {"temperature": -1}, "temperature"),
    (RESPONSES, {"metadata": {"a": 1}}, "metadata.a"),
]  # fmt: skip


@pytest.mark.parametrize(("path", "fields", "param"), REFUSED, ids=lambda value: str(value)[:24])
def test_refusals_name_the_field(server: Server, path: str, fields: Json, param: str) -> None:
    start = time.monotonic()
    error = fault(server, path, {**BODIES[path][1], **fields})
    assert error["param"] == param
    assert time.monotonic() - start < SECONDS


HALF = "\ud800"
"""Half of a character, as JSON can escape it."""


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({HALF: 1}, None),
        ({"messages": [{"role": "user", "content": HALF}]}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": HALF}]}]}, "messages[0].content[0]"),
        ({"tools": [{"type": "function", "function": {"name": "a"}}], "tool_choice": HALF}, None),
        ({"stop": HALF}, "stop"),
        ({"logit_bias": {HALF: 1}}, "logit_bias"),
        ({"guided_regex": HALF}, "guided_regex"),
        ({"guided_choice": [HALF]}, "guided_choice"),
        ({"guided_json": {HALF: 1}}, "guided_json"),
        ({"response_format": {"type": "regex", "value": HALF}}, "response_format"),
        ({"chat_template_kwargs": {"a": HALF}}, "chat_template_kwargs"),
        ({"documents": [{HALF: "a"}]}, "documents"),
        ({"reasoning_effort": HALF}, "reasoning_effort"),
        ({"tools": [{"type": "function", "function": {"name": "a", "description": HALF}}]},
         "tools[0].function.description"),
        ({"tools": [{"type": "function", "function": {"name": "a", "parameters": {HALF: 1}}}]},
         "tools"),
        ({"logits_processors": [{"name": HALF}]}, None),
    ],
    ids=lambda value: ascii(value)[:24],
)  # fmt: skip
def test_halves_of_characters(server: Server, fields: Json, param: str | None) -> None:
    error = fault(server, CHAT, {**HELLO, **fields})
    assert param is None or error["param"] == param
    fault(server, CHAT, {**HELLO, "model": HALF}, 404)


def test_null_is_the_same_as_absent(server: Server) -> None:
    document = httpx.get(f"{server.url}/api-doc/openapi.json", timeout=10).json()["components"]
    for path, (name, given) in BODIES.items():
        fields = document["schemas"][name]["properties"]
        assert len(fields) > 20
        nulls = {field: None for field in fields if field not in given}
        response = httpx.post(server.url + path, json={**given, **nulls}, timeout=30)
        assert response.status_code == 200, response.text


def test_each_field_refuses_what_it_cannot_be(server: Server) -> None:
    document = httpx.get(f"{server.url}/api-doc/openapi.json", timeout=10).json()["components"]
    values: list[Any] = ["x", -7, 0.5, [], [[]], {}, {"x": {}}, True, "\u0000"]
    with httpx.Client(base_url=server.url, timeout=60) as http:
        for path, (name, given) in BODIES.items():
            for field in document["schemas"][name]["properties"]:
                for value in values:
                    response = http.post(path, json={**given, field: value})
                    assert response.status_code in (200, 400, 404), (field, value, response.text)


@pytest.mark.parametrize("path", BODIES)
def test_numbers_that_are_none(server: Server, path: str) -> None:
    given = json.dumps(BODIES[path][1])[:-1]
    fields = ["temperature", "top_p"]
    if path != RESPONSES:
        fields += ["min_p", "repetition_penalty", "frequency_penalty", "presence_penalty"]
        fields += ["logit_bias"]
    for field in fields:
        for number in ("NaN", "Infinity", "-Infinity", "1e400"):
            value = f'{{"1": {number}}}' if field == "logit_bias" else number
            fault(server, path, f'{given}, "{field}": {value}}}'.encode())


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"{:", 400),
        (b"", 400),
        (b"{}", 400),
        (b"[]", 400),
        (b"null", 400),
        (b"3", 400),
        (b"[" * 10000, 400),
        (b'{"prompt": "a", "prompt": "b"}', 400),
        ('{"prompt": "文件"}'.encode("gbk"), 400),
        ('{"prompt": "a"}'.encode("utf-16"), 400),
    ],
)
def test_bodies_that_are_none(server: Server, path: str, body: bytes, status: int) -> None:
    assert fault(server, path, body, status)["type"] == "invalid_request_error"


def test_other_errors_have_the_same_form(server: Server) -> None:
    large = json.dumps({**PROMPT, "prompt": "a" * 2_100_000}).encode()
    assert fault(server, COMPLETIONS, large, 413)["code"] == "too_large"
    with httpx.Client(base_url=server.url) as http:
        for method, path, status in (
            ("GET", COMPLETIONS, 405),
            ("GET", "/v1/nothing", 404),
            ("POST", "/v1/embeddings", 404),
            ("GET", "/v1/models/nobody/nothing", 404),
        ):
            response = http.request(method, path)
            assert response.status_code == status
            assert set(response.json()["error"]) == {"message", "type", "param", "code"}
        text = http.post(COMPLETIONS, content=b"{}", headers={"content-type": "text/plain"})
        assert text.status_code == 415
        assert text.json()["error"]["message"]


def test_the_model_must_be_the_one_that_is_served(server: Server) -> None:
    with httpx.Client(base_url=server.url) as http:
        (model,) = http.get("/v1/models").json()["data"]
        assert http.get(f"/v1/models/{model['id']}").json() == model
    for name in (model["id"], "tgi", "dummy", None):
        assert chat(server, model=name, max_tokens=1)["model"] == (name or model["id"])
    error = fault(server, CHAT, {**HELLO, "model": "gpt-99"}, 404)
    assert error["param"] == "model"
    assert error["code"] == "model_not_found"
    assert model["id"] in error["message"]
    fault(server, COMPLETIONS, {**PROMPT, "model": "../../x"}, 404)


def test_a_prompt_that_is_too_long_is_told_by_how_much(server: Server) -> None:
    limit = httpx.get(f"{server.url}/info", timeout=10).json()["max_total_tokens"]
    error = fault(server, COMPLETIONS, {"prompt": "a b c d e f g h", "max_tokens": limit - 3})
    assert error["code"] == "context_length_exceeded"
    for number in (limit, limit - 3 + 8, 8, limit - 3):
        assert str(number) in error["message"]
    long = "a " * 2 * limit
    assert fault(server, COMPLETIONS, {"prompt": long})["code"] == "context_length_exceeded"
    short = chat(server, "a", max_tokens=1)["usage"]["prompt_tokens"]
    no_room = {"role": "user", "content": "a" + " a" * (limit - short)}
    error = fault(server, CHAT, {"messages": [no_room]})
    assert (error["code"], error["param"]) == ("context_length_exceeded", "messages")
    assert f"up to {limit - 1} tokens" in error["message"] and f"has {limit}" in error["message"]
    error = fault(server, COMPLETIONS, {"prompt": ["short", long, "other short"]})
    assert error["message"].startswith("prompt 1: ")
    huge = fault(server, CHAT, {**HELLO, "max_tokens": 2_000_000_000})
    assert huge["code"] == "context_length_exceeded"


def test_names_of_requests(server: Server) -> None:
    def named(name: str | None) -> str:
        headers = httpx.Headers({} if name is None else {b"x-request-id": name.encode()})
        response = httpx.post(server.url + CHAT, json=HELLO, headers=headers, timeout=30)
        assert response.status_code == 200
        answered: str = response.headers["x-request-id"]
        return answered

    assert named("abc-123") == "abc-123"
    assert named(None) != named(None)
    for name in ("a" * 6_000, "a b", "%0d%0aset-cookie:x", "é"):
        assert len(named(name)) == 32
    error = httpx.post(server.url + CHAT, json={}, headers={"x-request-id": "e-1"}, timeout=10)
    assert error.headers["x-request-id"] == "e-1"
    body: Json = {**HELLO, "request_id": "same", "max_tokens": 8, "temperature": 0}
    with concurrent.futures.ThreadPoolExecutor(2) as threads:
        same = {"x-request-id": "same"}

        def ask(_: int) -> Json:
            answer: Json = httpx.post(server.url + CHAT, json=body, headers=same, timeout=60).json()
            return answer

        one, two = threads.map(ask, range(2))
    assert one["id"] != two["id"]
    assert one["id"].startswith("chatcmpl-same-")
    assert one["choices"][0]["message"] == two["choices"][0]["message"]
