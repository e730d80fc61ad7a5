"""Calls of tools in chats: who must call, who may, and what a stream brings of a call."""

from __future__ import annotations

import json
from typing import Any

import httpx
import jsonschema
import pytest

from tests.integration.openai_api import CHAT, Streamed, ask, chat, fault, stream, stream_chat
from tests.integration.serving import Json, Server

WEATHER: Json = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 12},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
NOTHING: Json = {"type": "object", "properties": {}, "additionalProperties": False}
SCHEMAS = {"get_weather": WEATHER, "now": NOTHING}


def tool(name: str, **fields: Any) -> Json:  # noqa: ANN401 - JSON
    return {"type": "function", "function": {"name": name, **fields}}


TOOLS = [
    tool("get_weather", description="The weather in a city", parameters=WEATHER),
    tool("now", description="The time"),
]
QUESTION = "What is the weather in Rome?"
NAMED = {"type": "function", "function": {"name": "get_weather"}}


def turn(city: str, weather: str) -> list[Json]:
    """A question, a call, its result and the answer."""
    call = {
        "id": city,
        "type": "function",
        "function": {"name": "get_weather", "arguments": json.dumps({"city": city, "days": 1})},
    }
    return [
        {"role": "user", "content": f"Weather in {city}?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": city, "content": weather},
        {"role": "assistant", "content": f"It is {weather} in {city}."},
    ]


SHOTS = [
    *turn("Rome", "sunny"),
    *turn("Oslo", "cold"),
    {"role": "user", "content": "Weather in Paris?"},
]


def assert_calls(calls: list[Json]) -> None:
    """They are whole, and obey their schemas."""
    for call in calls:
        assert call["type"] == "function"
        function = call["function"]
        jsonschema.validate(json.loads(function["arguments"]), SCHEMAS[function["name"]])
    assert len({call["id"] for call in calls}) == len(calls)


def streamed_calls(streamed: Streamed, index: int = 0) -> list[Json]:
    """The calls that a choice's deltas come to, checking the form of each delta."""
    calls: list[Json] = []
    for choice in streamed.choices:
        if choice["index"] != index:
            continue
        for part in choice["delta"].get("tool_calls", ()):
            if "id" in part:
                assert part["index"] == len(calls) and part["type"] == "function"
                assert part["function"]["name"] and part["function"]["arguments"] == ""
                calls.append({"id": part["id"], "type": "function", "function": part["function"]})
            else:
                assert part["index"] == len(calls) - 1 and set(part["function"]) == {"arguments"}
                calls[-1]["function"]["arguments"] += part["function"]["arguments"]
    return calls


@pytest.mark.parametrize("seed", range(3))
def test_a_due_call_obeys_its_schema(server: Server, seed: int) -> None:
    sampled = {"temperature": 1.3, "seed": seed, "max_tokens": 60}
    several = {"tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False}
    (choice,) = chat(server, QUESTION, **several, **sampled)["choices"]
    assert choice["finish_reason"] == "tool_calls" and choice["message"]["content"] is None
    assert len(choice["message"]["tool_calls"]) == 1
    assert_calls(choice["message"]["tool_calls"])
    for named in (NAMED, "get_weather", {"function": {"name": "get_weather"}}):
        (choice,) = chat(server, "Hi", tools=TOOLS, tool_choice=named, **sampled)["choices"]
        (call,) = choice["message"]["tool_calls"]
        assert call["function"]["name"] == "get_weather"
        assert_calls([call])


def test_auto_forces_nothing(server: Server) -> None:
    """Text is free, even if it is JSON that looks like a call of some tool."""
    for extra in ({}, {"tool_choice": "auto"}, {"tool_choice": None}):
        (choice,) = chat(server, "Say hello.", tools=TOOLS, max_tokens=24, **extra)["choices"]
        assert "tool_calls" not in choice["message"] and choice["message"]["content"]
        assert choice["finish_reason"] in ("stop", "length")
    (choice,) = chat(
        server,
        'Repeat: {"name": "Anna", "arguments": 7}',
        tools=TOOLS,
        structured_outputs={"choice": ['{"name": "Anna", "arguments": 7}']},
    )["choices"]
    assert choice["message"]["content"] == '{"name": "Anna", "arguments": 7}'


def test_none_is_a_chat_without_tools(server: Server) -> None:
    plain = chat(server, QUESTION)
    several: list[Json] = [
        {"tools": TOOLS, "tool_choice": "none"},
        {"tools": []},
        {"tools": None},
    ]
    for given in several:
        answer = chat(server, QUESTION, **given)
        assert answer["choices"][0]["message"] == plain["choices"][0]["message"]
        assert answer["usage"]["prompt_tokens"] == plain["usage"]["prompt_tokens"]


def test_from_the_question_to_the_final_answer(server: Server) -> None:
    """The model calls because it wants to, and reads the result."""
    body = {"tools": TOOLS, "temperature": 0, "max_tokens": 60}
    message = ask(server, CHAT, messages=SHOTS, **body)["choices"][0]["message"]
    (call,) = message["tool_calls"]
    assert json.loads(call["function"]["arguments"])["city"] == "Paris"
    result = {"role": "tool", "tool_call_id": call["id"], "content": "windy"}
    (choice,) = ask(server, CHAT, messages=[*SHOTS, message, result], **body)["choices"]
    assert choice["finish_reason"] == "stop"
    assert "windy" in choice["message"]["content"] and "tool_calls" not in choice["message"]


@pytest.mark.parametrize("choice", ["required", NAMED], ids=["required", "named"])
def test_a_cut_call_ends_with_length_streamed_or_not(server: Server, choice: Any) -> None:  # noqa: ANN401
    """C045."""
    endings = set()
    for max_tokens in (4, 8, 16, 32):
        body: Json = {"tools": TOOLS, "tool_choice": choice, "max_tokens": max_tokens}
        (whole,) = chat(server, QUESTION, **body)["choices"]
        streamed = stream_chat(server, QUESTION, **body)
        assert streamed.finish_reasons() == [whole["finish_reason"]]
        calls = whole["message"].get("tool_calls", [])
        functions = [call["function"] for call in streamed_calls(streamed)]
        assert functions == [call["function"] for call in calls]
        assert streamed.text() == (whole["message"]["content"] or "")
        if whole["finish_reason"] == "tool_calls":
            assert_calls(calls)
        else:
            assert whole["finish_reason"] == "length"
        endings.add(whole["finish_reason"])
    assert endings == {"length", "tool_calls"}


def test_stop_strings_count_in_the_text_and_not_in_calls(server: Server) -> None:
    """Neither in what the model chose to call, nor in a call that was due."""
    body: Json = {"tools": TOOLS, "temperature": 0, "max_tokens": 60}
    without = ask(server, CHAT, messages=SHOTS, **body)["choices"][0]
    for more in ({}, {"tool_choice": "required"}):
        for stop in (["Paris", ","], ['"days"', "}", "\n"]):
            given = {**body, **more, "stop": stop}
            (choice,) = ask(server, CHAT, messages=SHOTS, **given)["choices"]
            functions = [call["function"] for call in choice["message"]["tool_calls"]]
            first = without["message"]["tool_calls"][0]["function"]
            assert functions[0] == first and choice["finish_reason"] == "tool_calls"
            streamed = stream(server, CHAT, messages=SHOTS, **given)
            assert [call["function"] for call in streamed_calls(streamed)] == functions
    (free,) = chat(server, "Say hello.", tools=TOOLS, max_tokens=24)["choices"]
    stop = free["message"]["content"][8:12]
    (choice,) = chat(server, "Say hello.", tools=TOOLS, max_tokens=24, stop=stop)["choices"]
    assert choice["finish_reason"] == "stop" and choice["stop_reason"] == stop
    assert choice["message"]["content"] == free["message"]["content"].partition(stop)[0]


def test_several_calls_and_several_choices_stream_apart(server: Server) -> None:
    body: Json = {
        "tools": TOOLS,
        "tool_choice": "required",
        "n": 3,
        "temperature": 1.5,
        "seed": 11,
        "max_tokens": 90,
    }
    streamed = stream_chat(server, "Weather in Rome, Oslo and Bonn, and the time?", **body)
    whole = chat(server, "Weather in Rome, Oslo and Bonn, and the time?", **body)
    for choice in whole["choices"]:
        calls = streamed_calls(streamed, choice["index"])
        functions = [call["function"] for call in choice["message"]["tool_calls"]]
        assert functions == [call["function"] for call in calls]
        if choice["finish_reason"] == "tool_calls":
            assert_calls(calls)
    assert any(len(choice["message"]["tool_calls"]) > 1 for choice in whole["choices"])


def test_text_beside_tools_obeys_the_response_format(server: Server) -> None:
    answer = {
        "type": "object",
        "properties": {"greeting": {"enum": ["hello", "hi"]}},
        "required": ["greeting"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": answer}}
    for seed in range(3):
        body: Json = {"tools": TOOLS, "parallel_tool_calls": False, "response_format": form}
        (choice,) = chat(server, **body, temperature=1.2, seed=seed, max_tokens=60)["choices"]
        if choice["finish_reason"] == "tool_calls":
            assert_calls(choice["message"]["tool_calls"])
        else:
            jsonschema.validate(json.loads(choice["message"]["content"]), answer)


ODD: Json = {
    "type": "object",
    "properties": {
        "city": {"enum": ["Oslo"], "format": "binary"},
        "days": {"type": "array", "items": {"enum": [1]}, "maxItems": 1, "not": {"const": []}},
    },
    "required": ["city"],
    "propertyNames": {"type": "string"},
}
WARNING = (
    '`tools[1].function.parameters` (odd): Unimplemented keys: ["not"] (at #/properties/days/not)'
)


def test_an_odd_schema_of_one_tool_is_served(server: Server) -> None:
    tools = [*TOOLS[:1], tool("odd", parameters=ODD)]
    body: Json = {"tools": tools, "tool_choice": "odd", "max_tokens": 60}
    answer = chat(server, **body)
    arguments = answer["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"]
    jsonschema.validate(json.loads(arguments), ODD)
    calls_odd = {**body, "tool_choice": "auto", "max_tokens": 1}
    assert chat(server, **calls_odd)["warnings"] == [WARNING]
    flat = [{"type": "function", **entry["function"]} for entry in tools]
    response = httpx.post(
        server.url + "/v1/responses",
        json={"input": "Hi", "tools": flat, "max_output_tokens": 16},
        timeout=60,
    )
    assert response.json()["warnings"] == [WARNING]


def test_a_strict_tool_is_refused_by_name_and_place(server: Server) -> None:
    odd = tool("odd", parameters=ODD)
    odd["function"]["strict"] = True
    messages = [{"role": "user", "content": "Hi"}]
    error = fault(server, CHAT, {"messages": messages, "tools": [*TOOLS[:1], odd]})
    assert error["param"] == "tools[1].function.parameters"
    assert error["message"] == WARNING.replace(": ", " is not valid: ", 1)


@pytest.mark.parametrize(
    ("body", "param", "reason"),
    [
        ({"tools": [{"type": "web_search"}]}, "tools[0].type", ""),
        ({"tools": [tool("a b")]}, "tools[0].function.name", ""),
        ({"tools": [tool("a"), tool("a")]}, "tools[1].function.name", "earlier"),
        ({"tools": [tool("a", parameters=[])]}, "tools[0].function.parameters", ""),
        (
            {"tools": [tool("a", parameters={"type": "string"})]},
            "tools[0].function.parameters.type",
            "object",
        ),
        (
            {"tools": [tool("ok"), tool("a", parameters={"properties": {"x": {"type": "strng"}}})]},
            "tools[1].function.parameters",
            "(a) is not valid: Invalid type: strng (at #/properties/x/type)",
        ),
        ({"tools": TOOLS, "tool_choice": "nobody"}, "tool_choice", "nobody"),
        (
            {"tools": TOOLS, "tool_choice": {"function": {"name": "nobody"}}},
            "tool_choice.function.name",
            "nobody",
        ),
        ({"tool_choice": "required"}, "tool_choice", "needs `tools`"),
        ({"tools": [tool(f"t{i}") for i in range(129)]}, "tools", "128"),
        ({"tools": TOOLS, "guided_json": '{}}, {"type": "any_text"'}, "guided_json", "not valid"),
        ({"tools": TOOLS, "guided_json": '{"a": "\ud800"}'}, "guided_json", "Unicode"),
        ({"tools": TOOLS, "guided_regex": "\ud800"}, "guided_regex", "Unicode"),
    ],
)
@pytest.mark.parametrize("streams", [False, True])
def test_wrong_tools_are_named(
    server: Server, body: Json, param: str, reason: str, streams: bool
) -> None:
    messages = [{"role": "user", "content": "Hi"}]
    error = fault(server, CHAT, {"messages": messages, "stream": streams, **body})
    assert error["param"] == param and reason in error["message"]


def test_a_megabyte_of_schemas_is_refused(server: Server) -> None:
    """C051."""
    wide = {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(600)}}
    tools = [tool(f"t{i}", parameters=wide) for i in range(100)]
    fault(server, CHAT, {"messages": [{"role": "user", "content": "Hi"}], "tools": tools})
