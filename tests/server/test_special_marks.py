"""Calls that special tokens mark: what is parsed has their names, what is told does not."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.server.running import RunningServer, running, script
from tokenloom_engine.messages import Finish, SequenceOutput, Token

TEMPLATE = (
    "{% if tools %}[TOOL_CALLS] [{% endif %}{% for m in messages %}{{ m.content }}{% endfor %}"
)
TOOLS = [{"type": "function", "function": {"name": "now"}}]
TEXTS = ["I look.", "[TOOL_CALLS]", ' [{"name": "now", "argu', 'ments": {', "}", "}]", "<end>"]
SPECIAL = {"[TOOL_CALLS]", "<end>"}


@pytest.fixture(scope="module")
def server(
    tokenizer_file: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningServer]:
    config = tmp_path_factory.mktemp("template") / "tokenizer_config.json"
    config.write_text(json.dumps({"chat_template": TEMPLATE}))
    with running(tokenizer_file, tokenizer_config_path=str(config)) as server:
        yield server


def answer(server: RunningServer, **fields: Any) -> dict[str, Any]:  # noqa: ANN401
    tokens = [Token(0 if t == "<end>" else 7, t, special=t in SPECIAL) for t in TEXTS]
    outputs = [SequenceOutput(0, [token]) for token in tokens]
    outputs[-1].finish = Finish("eos_token", "", len(tokens), 0)
    body = {
        "messages": [{"role": "user", "content": "Hi"}],
        "stop": [script(*outputs)],
        "max_tokens": 20,
        **fields,
    }
    response = httpx.post(f"{server.url}/v1/chat/completions", json=body)
    assert response.status_code == 200, response.text
    choice: dict[str, Any] = response.json()["choices"][0]
    return choice


def test_the_mark_is_read_and_the_end_is_not(server: RunningServer) -> None:
    choice = answer(server, tools=TOOLS)
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] == "I look."
    (call,) = choice["message"]["tool_calls"]
    assert call["function"] == {"name": "now", "arguments": "{}"}
    assert len(call["id"]) == 9, "Mistral's templates insist on it"


def test_without_tools_a_mark_is_left_out_like_any_special_token(server: RunningServer) -> None:
    choice = answer(server)
    assert choice["message"]["content"] == 'I look. [{"name": "now", "arguments": {}}]'
    assert "tool_calls" not in choice["message"] and choice["finish_reason"] == "stop"
