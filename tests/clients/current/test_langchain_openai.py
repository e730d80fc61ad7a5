"""langchain-openai: messages, streams, structured output and calls of tools."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, Field


class Person(BaseModel):
    """A person."""

    name: str = Field(max_length=8)
    age: int


@tool
def get_weather(city: str) -> str:
    """The weather in a city."""
    return f"sunny in {city}"


@pytest.fixture(scope="module")
def model(url: str) -> ChatOpenAI:
    settings: Any = {"max_tokens": 60, "timeout": 120, "max_retries": 0}
    return ChatOpenAI(base_url=f"{url}/v1", api_key="none", model="tgi", temperature=0, **settings)


def test_text_whole_and_streamed(model: ChatOpenAI) -> None:
    whole = model.invoke("Say hello.")
    assert whole.content == "".join(str(chunk.content) for chunk in model.stream("Say hello."))
    assert whole.usage_metadata is not None and whole.usage_metadata["output_tokens"] > 0


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_structured_output(model: ChatOpenAI, method: Any) -> None:  # noqa: ANN401
    structured = model.with_structured_output(Person, method=method)
    assert isinstance(structured.invoke("A person: Anna, 34."), Person)


def test_from_the_question_to_the_final_answer(model: ChatOpenAI) -> None:
    question = HumanMessage("What is the weather in Rome?")
    call = model.bind_tools([get_weather], tool_choice="get_weather").invoke([question])
    assert len(call.tool_calls) == 1
    result = get_weather.invoke(call.tool_calls[0])
    assert isinstance(result, ToolMessage)
    answer = model.invoke([question, call, result])
    assert not answer.tool_calls and answer.response_metadata["finish_reason"] in ("stop", "length")
