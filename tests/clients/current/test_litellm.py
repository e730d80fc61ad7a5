"""litellm, by its provider for OpenAI-like servers."""

from __future__ import annotations

import json
import os
from typing import Any

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # or it asks another host when it is loaded

import litellm

WEATHER: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 12}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": WEATHER}}


def ask(url: str, **given: Any) -> Any:  # noqa: ANN401 - litellm's answers have many types
    return litellm.completion(
        model="hosted_vllm/tgi",
        api_base=f"{url}/v1",
        api_key="none",
        messages=[{"role": "user", "content": "What is the weather in Rome?"}],
        temperature=0,
        **given,
    )


def test_text_whole_and_streamed(url: str) -> None:
    whole = ask(url, max_tokens=8)
    assert whole.usage.completion_tokens > 0
    pieces = [chunk.choices[0].delta.content or "" for chunk in ask(url, max_tokens=8, stream=True)]
    assert "".join(pieces) == whole.choices[0].message.content != ""


def test_a_schema(url: str) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "city", "schema": WEATHER}}
    answer = ask(url, max_tokens=40, response_format=form)
    assert set(json.loads(answer.choices[0].message.content)) == {"city"}


def test_a_call(url: str) -> None:
    answer = ask(url, max_tokens=60, tools=[TOOL], tool_choice="required")
    choice = answer.choices[0]
    assert choice.finish_reason == "tool_calls"
    assert set(json.loads(choice.message.tool_calls[0].function.arguments)) == {"city"}
