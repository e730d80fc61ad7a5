"""Chats with tools, for models whose chat template knows tools and for those that know nothing."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from tokenloom_server.tools.call_format import CallFormat
from tokenloom_server.tools.tool import Tool, ToolChoice

Message = dict[str, Any]
"""A message as chat templates take it: the arguments of calls are objects."""

MAY = "To call one, write nothing but this, with its name and arguments:"
MUST = "Answer with a call and nothing else, with a function's name and arguments:"
OTHERWISE = "If no call is needed, answer in plain text."


def tool_bodies(tools: Sequence[Tool]) -> list[dict[str, Any]]:
    """What a template is told of the tools."""
    return [{"type": "function", "function": _function(tool)} for tool in tools]


def flatten_results(messages: Sequence[Message]) -> list[Message]:
    """Tool results as text of the user, for a template that does not render the role `tool`."""
    names: dict[str, str] = {}
    flat: list[Message] = []
    was_result = False
    for message in messages:
        calls = message.get("tool_calls") or []
        names |= {call.get("id", ""): call["function"]["name"] for call in calls}
        is_result = message["role"] == "tool"
        if is_result:
            name = message.get("name") or names.get(message.get("tool_call_id", ""), "the function")
            text = f"Result of {name}:\n{message['content']}"
            if was_result:
                flat[-1] = {**flat[-1], "content": f"{flat[-1]['content']}\n\n{text}"}
            else:
                flat.append({"role": "user", "content": text})
        else:
            flat.append(message)
        was_result = is_result
    return flat


def flatten_calls(messages: Sequence[Message], format: CallFormat) -> list[Message]:
    """Tool calls as text of the assistant, for a template that does not render `tool_calls`."""
    return [
        _flat_calls(message, format) if message.get("tool_calls") else message
        for message in messages
    ]


def encode_arguments(messages: Sequence[Message]) -> list[Message]:
    """Arguments of tool calls as JSON text, for a template that adds them to strings."""
    return [
        {**message, "tool_calls": [_encoded_call(call) for call in message["tool_calls"]]}
        if message.get("tool_calls")
        else message
        for message in messages
    ]


def instructed(
    messages: Sequence[Message], format: CallFormat, choice: ToolChoice
) -> list[Message]:
    """The messages with what the model must know to call tools: in the system's message, or else in
    the user's first, for some templates know no system.
    """
    text = instruction(format, choice)
    place = next((i for i, m in enumerate(messages) if m["role"] in ("system", "developer")), None)
    if place is None:
        place = next((i for i, m in enumerate(messages) if m["role"] == "user"), None)
    if place is None:
        return [{"role": "user", "content": text}, *messages]
    message = messages[place]
    parts = (message["content"], text) if message["role"] != "user" else (text, message["content"])
    changed = {**message, "content": "\n\n".join(part for part in parts if part)}
    return [*messages[:place], changed, *messages[place + 1 :]]


def instruction(format: CallFormat, choice: ToolChoice) -> str:
    """The tools, and how to call them."""
    example = format.group([("NAME", '{"ARGUMENT": VALUE}')])
    lines = ["You can call these functions:"]
    lines += [_json(_function(tool)) for tool in choice.callable]
    lines += ["", MUST if choice.mode == "required" else MAY, example]
    return "\n".join(lines if choice.mode == "required" else [*lines, OTHERWISE])


def _function(tool: Tool) -> dict[str, Any]:
    function: dict[str, Any] = {"name": tool.name}
    if tool.description is not None:
        function["description"] = tool.description
    function["parameters"] = tool.schema if tool.parameters is None else tool.parameters
    return function


def _encoded_call(call: Message) -> Message:
    function = call["function"]
    return {**call, "function": {**function, "arguments": _json(function["arguments"])}}


def _flat_calls(message: Message, format: CallFormat) -> Message:
    functions = [call["function"] for call in message["tool_calls"]]
    text = format.group([(f["name"], _json(f["arguments"])) for f in functions])
    kept = {key: value for key, value in message.items() if key != "tool_calls"}
    content = message.get("content")
    return {**kept, "content": f"{content}\n{text}" if content else text}


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
