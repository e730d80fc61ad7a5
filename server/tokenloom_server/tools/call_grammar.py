"""The grammar of answers that may call tools: free text up to a call, then the tools' schemas."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from tokenloom_server.tools.call_format import CallFormat
from tokenloom_server.tools.tool import Tool, ToolChoice

Format = dict[str, Any]
"""A format of a structural tag."""
SCHEMA_PATH = re.compile(r"format\.[\w.\[\]]*tags\[(\d+)\]\.content\.json_schema: ")
"""Where the structural tag has a tool's schema."""


def call_grammar(
    format: CallFormat,
    choice: ToolChoice,
    text: Format | None = None,
) -> Format:
    """The answers under a choice of tools.

    `text` is what an answer without calls must look like; without it, it is free, and so is what
    stands before calls.
    """
    is_due = choice.mode == "required" or text is not None
    tags = _group(format, choice) if format.separator is not None else _single(format, choice)
    calls: Format = {
        "type": "triggered_tags",
        **tags,
        "stop_after_first": True,
        "at_least_one": is_due,
    }
    if text is None or choice.mode == "required":
        return calls
    return {"type": "or", "elements": [calls, text]}


class Remark(NamedTuple):
    """What is said of a tool's schema."""

    place: str
    """The field, which a client can follow to its tools, and the tool's name."""
    text: str


def remark_on_tool(message: str, choice: ToolChoice) -> Remark | None:
    """What a message about the structural tag says of a tool; None if it is about none."""
    found = SCHEMA_PATH.search(message)
    if found is None or int(found[1]) >= len(choice.callable):
        return None
    tool = choice.callable[int(found[1])]
    place = f"`tools[{tool.number}].function.parameters` ({tool.name})"
    return Remark(place, message[found.end() :])


def _single(format: CallFormat, choice: ToolChoice) -> Format:
    """One call, which its whole beginning tells."""
    return {
        "triggers": [format.begin(tool.name) for tool in choice.callable],
        "tags": [_tag(format, tool) for tool in choice.callable],
    }


def _group(format: CallFormat, choice: ToolChoice) -> Format:
    """Calls behind an opener."""
    calls = {
        "type": "tags_with_separator",
        "tags": [_tag(format, tool) for tool in choice.callable],
        "separator": format.separator,
        "at_least_one": True,
        "stop_after_first": not choice.several,
    }
    return {
        "triggers": [format.opener],
        "tags": [{"type": "tag", "begin": format.opener, "content": calls, "end": format.closer}],
    }


def _tag(format: CallFormat, tool: Tool) -> Format:
    return {
        "type": "tag",
        "begin": format.begin(tool.name),
        "content": {
            "type": "json_schema",
            "json_schema": tool.schema,
            "lenient": not tool.strict,
        },
        "end": format.end,
    }
