"""TGI's routes besides those that generate in its own form."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest
from transformers import AutoTokenizer

from tests.integration.serving import Json, Server

PROMPT = "The capital of France is"
MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Say hé 🙂."},
]
CHAT: Json = {"messages": MESSAGES, "max_tokens": 4, "temperature": 0}


def post(server: Server, path: str, content: Json) -> httpx.Response:
    return httpx.post(server.url + path, json=content, timeout=60)


def test_the_tokens_of_a_chat(server: Server, model_path: Path) -> None:
    answer = post(server, "/chat_tokenize", {"messages": MESSAGES}).json()
    tokenizer = AutoTokenizer.from_pretrained(model_path)
    text = tokenizer.apply_chat_template(MESSAGES, tokenize=False, add_generation_prompt=True)
    assert isinstance(text, str)
    assert answer["templated_text"] == text
    tokens = answer["tokenize_response"]
    assert [token["id"] for token in tokens] == tokenizer(text, add_special_tokens=False).input_ids
    assert (tokens[0]["start"], tokens[-1]["stop"]) == (0, len(text.encode()))
    assert "".join(token["text"] for token in tokens if "\ufffd" not in token["text"]) in text


@pytest.mark.parametrize("number", [1, 7, 10_000])
def test_the_last_tokens_of_a_chat(server: Server, number: int) -> None:
    whole = post(server, "/chat_tokenize", {"messages": MESSAGES}).json()
    cut = post(
        server, "/chat_tokenize", {"messages": MESSAGES, "truncate_prompt_tokens": number}
    ).json()
    assert cut["tokenize_response"] == whole["tokenize_response"][-number:]
    assert cut["templated_text"] == whole["templated_text"]


@pytest.mark.parametrize("messages", [[], [{"role": "user"}], [{"role": 1}], "Say hi.", None])
def test_a_chat_that_is_none(server: Server, messages: object) -> None:
    response = post(server, "/chat_tokenize", {"messages": messages})
    assert response.status_code == 422
    assert "messages" in response.text


def test_predictions_of_prompts_and_chats(server: Server) -> None:
    prompt = {"inputs": PROMPT, "parameters": {"max_new_tokens": 2}}
    answer = post(server, "/vertex", {"instances": [prompt, CHAT, prompt]}).json()
    chat = post(server, "/v1/chat/completions", CHAT).json()
    said = chat["choices"][0]["message"]["content"]
    assert answer == {"predictions": [" Paris.", said, " Paris."]}


def test_a_prediction_has_the_warnings_of_its_schema(server: Server) -> None:
    schema = {"type": "array", "items": {"const": 1}, "maxItems": 2, "uniqueItems": True}
    grammar = {"type": "json", "value": schema, "lenient": True}
    plain = {"inputs": PROMPT, "parameters": {"max_new_tokens": 2}}
    lenient = {"inputs": PROMPT, "parameters": {"max_new_tokens": 8, "grammar": grammar}}
    answer = post(server, "/vertex", {"instances": [plain, lenient]}).json()
    assert json.loads(answer["predictions"][1]) in ([], [1], [1, 1])
    (warning,) = answer["warnings"]
    assert warning.startswith("instances[1]: ") and "uniqueItems" in warning


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n", 2),
        ("logprobs", True),
        ("stream", True),
        ("model", "another"),
        ("return_token_ids", True),
        ("request_id", "a"),
        ("skip_special_tokens", False),
        ("include_stop_str_in_output", False),
        ("logprobs_mode", "processed"),
    ],
)
def test_a_chat_that_no_prediction_can_answer(server: Server, field: str, value: object) -> None:
    response = post(server, "/vertex", {"instances": [{**CHAT, field: value}]})
    assert response.status_code == 422
    shown = value if field == "model" else field
    assert f"`{shown}`" in response.json()["error"]


@pytest.mark.parametrize(
    ("path", "content"),
    [
        ("/", {"inputs": PROMPT, "parameters": {"max_new_tokens": 2}}),
        ("/v1/chat/completions", CHAT),
        ("/v1/completions", {"prompt": PROMPT, "max_tokens": 2, "temperature": 0}),
        ("/v1/chat/completions", {**CHAT, "n": 0}),
        ("/v1/completions", {"prompt": PROMPT, "max_tokens": -1}),
    ],
)
def test_invocations_answer_as_the_route_whose_body_it_is(
    server: Server, path: str, content: Json
) -> None:
    here, there = post(server, "/invocations", content), post(server, path, content)
    assert here.status_code == there.status_code
    assert _without_names(here.json()) == _without_names(there.json())
    assert set(here.headers) == set(there.headers)


def test_invocations_stream(server: Server) -> None:
    response = post(server, "/invocations", {**CHAT, "stream": True})
    assert response.headers["content-type"].startswith("text/event-stream")
    *chunks, end = [frame.removeprefix("data: ") for frame in response.text.strip().split("\n\n")]
    assert end == "[DONE]"
    assert all(json.loads(chunk)["object"] == "chat.completion.chunk" for chunk in chunks)


def _without_names(answer: object) -> object:
    """Without what is another one in each answer."""
    if isinstance(answer, dict):
        return {name: value for name, value in answer.items() if name not in ("id", "created")}
    return answer
