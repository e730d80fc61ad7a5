"""Reasoning: what stands in front of an answer is told apart from it, and never constrained."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.integration.openai_api import CHAT, Streamed, ask, fault, stream
from tests.integration.serving import Json, Server, serve

ANSWER: Json = {
    "type": "object",
    "properties": {"answer": {"type": "integer"}},
    "required": ["answer"],
    "additionalProperties": False,
}
FORM = {"type": "json_schema", "json_schema": {"name": "a", "schema": ANSWER}}
ADD = {"type": "function", "function": {"name": "add", "parameters": ANSWER}}


def turn(a: int, b: int) -> list[Json]:
    answer = f'<think>\nI add {a} and {b}.\n</think>\n\n{{"answer":{a + b}}}'
    return [
        {"role": "user", "content": f"What is {a} plus {b}?"},
        {"role": "assistant", "content": answer},
    ]


SHOTS = [*turn(2, 3), *turn(1, 3), {"role": "user", "content": "What is 4 plus 3?"}]


TEMPLATE = """\
{%- if tools %}<|im_start|>system
Call a function by <tool_call>. Functions:{% for tool in tools %} {{ tool | tojson }}{% endfor %}
<|im_end|>
{% endif %}
{%- for message in messages %}<|im_start|>{{ "user" if message.role == "tool" else message.role }}
{{ message.content }}
{%- for call in message.tool_calls or [] %}<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>{% endfor %}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% if begins %}<think>
{% endif %}{% endif %}"""
"""Of a model that calls tools as Hermes does. With `begins`, it begins the reasoning."""


@pytest.fixture(scope="module")
def server(model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A model that has learned to reason, as far as its chat template is concerned."""
    folder = tmp_path_factory.mktemp("reasoning")
    config = json.loads((model_path / "tokenizer_config.json").read_text())
    config["chat_template"] = TEMPLATE
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    flags = ["--tokenizer-config-path", str(folder / "tokenizer_config.json")]
    flags += ["--dtype", "float32", "--reasoning-parser", "think"]
    with serve(folder / "log", "--model-id", str(model_path), *flags) as server:
        yield server


def think(server: Server, messages: list[Json] = SHOTS, **body: Any) -> Json:  # noqa: ANN401
    return ask(server, CHAT, messages=messages, **{"temperature": 0, "max_tokens": 60, **body})


def reasoning_of(streamed: Streamed) -> str:
    deltas = [choice["delta"] for choice in streamed.choices]
    for delta in deltas:
        assert not ("reasoning_content" in delta and delta.get("content"))
    return "".join(delta.get("reasoning_content", "") for delta in deltas)


@pytest.mark.parametrize("body", [{}, {"response_format": FORM}], ids=["free", "schema"])
def test_reasoning_is_told_apart(server: Server, body: Json) -> None:
    answer = think(server, **body)
    message = answer["choices"][0]["message"]
    assert message["reasoning_content"].startswith("I add 4 and 3.")
    jsonschema.validate(json.loads(message["content"]), ANSWER)
    details = answer["usage"]["completion_tokens_details"]
    assert 0 < details["reasoning_tokens"] < answer["usage"]["completion_tokens"]
    streamed = stream(server, CHAT, messages=SHOTS, temperature=0, max_tokens=60, **body)
    assert reasoning_of(streamed) == message["reasoning_content"]
    assert streamed.text() == message["content"]
    again = think(server, [*SHOTS, message, {"role": "user", "content": "What is 1 plus 1?"}])
    assert again["choices"][0]["message"]["content"] is not None


def test_the_answer_does_not_escape_into_reasoning(server: Server) -> None:
    """However the model was drawn, a finished answer is JSON, whole, and not among the thoughts."""
    answers = think(server, response_format=FORM, n=5, temperature=1.3, seed=1, max_tokens=80)
    finished = [c for c in answers["choices"] if c["finish_reason"] == "stop"]
    assert finished
    for choice in finished:
        jsonschema.validate(json.loads(choice["message"]["content"]), ANSWER)
        assert "</think>" not in choice["message"].get("reasoning_content", "")


def test_reasoning_that_the_prompt_began_goes_on(server: Server) -> None:
    """A cut inside of it is no answer."""
    begun = [*SHOTS, {"role": "assistant", "content": "<think>\nI add 4"}]
    message = think(server, begun, response_format=FORM)["choices"][0]["message"]
    assert message["reasoning_content"].startswith("and 3.")
    jsonschema.validate(json.loads(message["content"]), ANSWER)
    (cut,) = think(server, begun, response_format=FORM, max_tokens=2)["choices"]
    assert cut["finish_reason"] == "length"
    assert cut["message"]["content"] == "" and cut["message"]["reasoning_content"]


@pytest.mark.parametrize("body", [{}, {"response_format": FORM}], ids=["free", "schema"])
def test_reasoning_that_the_template_began_is_reasoning(server: Server, body: Json) -> None:
    variables: Json = {"chat_template_kwargs": {"begins": True}}
    message = think(server, **body, **variables)["choices"][0]["message"]
    assert message["reasoning_content"].startswith("I add 4 and 3.")
    jsonschema.validate(json.loads(message["content"]), ANSWER)
    (cut,) = think(server, **body, **variables, max_tokens=3)["choices"]
    assert cut["message"]["reasoning_content"] and cut["message"]["content"] == ""


@pytest.mark.parametrize("begins", [False, True], ids=["by the model", "by the template"])
def test_stop_strings_do_not_count_in_reasoning(server: Server, begins: bool) -> None:
    """Nor in the strings of an answer in JSON, nor in the white space before it."""
    given: Json = {"chat_template_kwargs": {"begins": begins}}
    whole = think(server, **given)["choices"][0]["message"]
    body = {**given, "stop": ["\n", "plus", "4", ":"]}
    (choice,) = think(server, **body)["choices"]
    assert choice["stop_reason"] == ":" and choice["finish_reason"] == "stop"
    assert choice["message"]["reasoning_content"] == whole["reasoning_content"]
    assert choice["message"]["content"] == whole["content"].partition(":")[0]
    streamed = stream(server, CHAT, messages=SHOTS, temperature=0, max_tokens=60, **body)
    assert reasoning_of(streamed) == whole["reasoning_content"]
    assert streamed.text() == choice["message"]["content"]
    body = {**given, "stop": ["answer", "I add"], "response_format": FORM}
    message = think(server, **body)["choices"][0]["message"]
    jsonschema.validate(json.loads(message["content"]), ANSWER)


def test_responses_have_an_item_of_reasoning(server: Server) -> None:
    items = [{"type": "message", **message} for message in SHOTS]
    schema = {"type": "json_schema", "name": "a", "schema": ANSWER}
    body = {"input": items, "text": {"format": schema}, "temperature": 0, "max_output_tokens": 60}
    answer = ask(server, "/v1/responses", **body)
    reasoning, message = answer["output"]
    assert reasoning["type"] == "reasoning" and message["type"] == "message"
    assert reasoning["content"][0]["text"].startswith("I add 4 and 3.")
    jsonschema.validate(json.loads(message["content"][0]["text"]), ANSWER)
    usage = answer["usage"]
    assert 0 < usage["output_tokens_details"]["forced_tokens"] < usage["output_tokens"]
    assert 0 < usage["output_tokens_details"]["reasoning_tokens"] < usage["output_tokens"]
    more = [*items, *answer["output"], {"role": "user", "content": "What is 1 plus 1?"}]
    assert ask(server, "/v1/responses", **{**body, "input": more})["output"]


def test_calls_follow_reasoning(server: Server) -> None:
    """In the form that the template is written for."""
    shots: list[Json] = []
    for a, b in ((2, 3), (1, 3)):
        call = {
            "id": f"{a}",
            "type": "function",
            "function": {"name": "add", "arguments": json.dumps({"answer": a + b})},
        }
        text = f"<think>\nI add {a} and {b}.\n</think>\n"
        shots += [
            {"role": "user", "content": f"What is {a} plus {b}?"},
            {"role": "assistant", "content": text, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": f"{a}", "content": "good"},
            {"role": "assistant", "content": f"It is {a + b}."},
        ]
    shots.append({"role": "user", "content": "What is 4 plus 3?"})
    for choice in ("auto", "required"):
        (answer,) = think(server, shots, tools=[ADD], tool_choice=choice, max_tokens=80)["choices"]
        message = answer["message"]
        assert answer["finish_reason"] == "tool_calls", answer
        assert "I add 4 and 3" in message["reasoning_content"] and message["content"] is None
        (call,) = message["tool_calls"]
        jsonschema.validate(json.loads(call["function"]["arguments"]), ANSWER)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (
            {"response_format": {"type": "json", "value": {"type": "strng"}}},
            "`response_format` is not valid: Invalid type: strng",
        ),
        ({"structured_outputs": {"regex": "("}}, "`structured_outputs` is not valid: "),
        (
            {
                "structured_outputs": {
                    "structural_tag": {"format": {"type": "regex", "pattern": "("}}
                }
            },
            "`structured_outputs` is not valid: format.",
        ),
    ],
)
def test_what_is_wrong_is_said_in_the_client_s_words(
    server: Server, body: Json, reason: str
) -> None:
    messages = [{"role": "user", "content": "Hi"}]
    error = fault(server, CHAT, {"messages": messages, **body})
    assert error["message"].startswith(reason)
    paths = "format." in error["message"].removeprefix("`response_format`")
    assert paths == ("format." in reason), error


def test_a_request_without_reasoning_is_as_ever(server: Server) -> None:
    (choice,) = think(
        server, [{"role": "user", "content": "Hi"}], structured_outputs={"choice": ["yes", "no"]}
    )["choices"]
    assert choice["message"]["content"] in ("yes", "no")
