"""openai's client: calls of functions, in chats and in responses, and what else responses are."""

from __future__ import annotations

import json
from typing import Any, Literal

import openai
import pytest
from openai import OpenAI
from pydantic import BaseModel

WEATHER: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 12}},
    "required": ["city"],
    "additionalProperties": False,
}
CHAT_TOOLS: Any = [
    {"type": "function", "function": {"name": "get_weather", "strict": True, "parameters": WEATHER}}
]
TOOLS: Any = [{"type": "function", "name": "get_weather", "strict": True, "parameters": WEATHER}]
QUESTION = "What is the weather in Rome?"
GREEDY: Any = {"model": "tgi", "temperature": 0}


class Answer(BaseModel):
    weather: Literal["sunny", "cloudy"]
    degrees: int


@pytest.fixture(scope="module")
def client(url: str) -> OpenAI:
    return OpenAI(base_url=f"{url}/v1", api_key="none", timeout=120, max_retries=0)


def get_weather(arguments: str) -> str:
    return f"It is sunny in {json.loads(arguments)['city']}, 25 degrees."


def test_a_chat_calls_until_it_answers(client: OpenAI) -> None:
    messages: Any = [{"role": "user", "content": QUESTION}]
    calls = 0
    while True:
        choice = client.chat.completions.create(
            **GREEDY,
            messages=messages,
            tools=CHAT_TOOLS,
            tool_choice="required" if calls == 0 else "none",
            parallel_tool_calls=False,
            max_tokens=60,
        ).choices[0]
        messages.append(choice.message)
        if choice.finish_reason != "tool_calls":
            break
        for call in choice.message.tool_calls or ():
            assert call.type == "function"
            calls += 1
            result = get_weather(call.function.arguments)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    assert calls == 1 and choice.message.content


def test_a_stream_helper_reads_a_call(client: OpenAI) -> None:
    with client.chat.completions.stream(
        **GREEDY,
        messages=[{"role": "user", "content": QUESTION}],
        tools=CHAT_TOOLS,
        tool_choice={"type": "function", "function": {"name": "get_weather"}},
        max_tokens=60,
    ) as stream:
        kinds = [event.type for event in stream]
        choice = stream.get_final_completion().choices[0]
    assert "tool_calls.function.arguments.delta" in kinds
    assert kinds.count("tool_calls.function.arguments.done") == 1
    assert choice.finish_reason == "tool_calls" and choice.message.tool_calls
    assert choice.message.tool_calls[0].function.parsed_arguments["city"]


def test_responses_call_until_they_answer(client: OpenAI) -> None:
    items: Any = [{"role": "user", "content": QUESTION}]
    first = client.responses.create(
        **GREEDY, input=items, tools=TOOLS, tool_choice="required", max_output_tokens=60
    )
    assert first.status == "completed"
    calls = [item for item in first.output if item.type == "function_call"]
    items += first.output
    items += [
        {"type": "function_call_output", "call_id": c.call_id, "output": get_weather(c.arguments)}
        for c in calls
    ]
    answer = client.responses.parse(
        **GREEDY, input=items, instructions="Use JSON.", text_format=Answer, max_output_tokens=60
    )
    assert len(calls) == 1 and isinstance(answer.output_parsed, Answer)
    assert answer.usage is not None and answer.usage.output_tokens > 0


def test_responses_stream_their_events_in_order(client: OpenAI) -> None:
    with client.responses.stream(**GREEDY, input="Say hello.", max_output_tokens=8) as stream:
        events = list(stream)
    last: Any = events[-1]
    final = last.response
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type for event in events]
    deltas = kinds.count("response.output_text.delta")
    assert kinds == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        *["response.output_text.delta"] * deltas,
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed" if final.status == "completed" else "response.incomplete",
    ]
    text = "".join(e.delta for e in events if e.type == "response.output_text.delta")
    assert text == final.output_text and text


def test_responses_stream_calls(client: OpenAI) -> None:
    kinds = [
        event.type
        for event in client.responses.create(
            **GREEDY,
            input=QUESTION,
            tools=TOOLS,
            tool_choice={"type": "function", "name": "get_weather"},
            max_output_tokens=60,
            stream=True,
        )
    ]
    deltas = kinds.count("response.function_call_arguments.delta")
    assert deltas and kinds == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        *["response.function_call_arguments.delta"] * deltas,
        "response.function_call_arguments.done",
        "response.output_item.done",
        "response.completed",
    ]


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({"store": True}, "store"),
        ({"background": True}, "background"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"truncation": "auto"}, "truncation"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0]"),
        (
            {"text": {"format": {"type": "json_schema", "name": "a", "schema": {"type": "x"}}}},
            "text.format",
        ),
    ],
)
def test_what_responses_do_not_do_is_named(
    client: OpenAI, given: dict[str, Any], param: str
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        body: Any = {"model": "tgi", "input": "Hi", **given}
        client.responses.create(**body)
    assert caught.value.param == param


def test_responses_return_log_probabilities(client: OpenAI) -> None:
    response = client.responses.create(
        **GREEDY,
        input="Say hello.",
        max_output_tokens=4,
        top_logprobs=2,
        include=["message.output_text.logprobs"],
        store=False,
    )
    (message,) = response.output
    assert message.type == "message" and message.content[0].type == "output_text"
    logprobs = message.content[0].logprobs
    assert logprobs and "".join(p.token for p in logprobs) == response.output_text
    assert all(
        len(p.top_logprobs) == 2 and p.logprob == p.top_logprobs[0].logprob for p in logprobs
    )
