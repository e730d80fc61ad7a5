"""pydantic-ai: an agent that answers with a model, by call and by schema, and runs a tool."""

from __future__ import annotations

import pytest
from pydantic import BaseModel, Field
from pydantic_ai import Agent, NativeOutput, ToolOutput
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.settings import ModelSettings


class Person(BaseModel):
    name: str = Field(max_length=8)
    age: int = Field(ge=0, le=120)


@pytest.fixture
def model(url: str) -> OpenAIChatModel:
    provider = OpenAIProvider(base_url=f"{url}/v1", api_key="none")
    return OpenAIChatModel("tgi", provider=provider)


@pytest.mark.parametrize("kind", [ToolOutput, NativeOutput])
def test_an_agent_answers_with_a_model(
    model: OpenAIChatModel, kind: type[ToolOutput[Person] | NativeOutput[Person]]
) -> None:
    settings = ModelSettings(temperature=0, max_tokens=80, parallel_tool_calls=False)
    if kind is NativeOutput:
        settings = ModelSettings(temperature=0, max_tokens=80)
    agent: Agent[None, Person] = Agent(model, output_type=kind(Person), model_settings=settings)
    result = agent.run_sync("A person: Anna, 34.")
    assert isinstance(result.output, Person)
    assert result.usage.output_tokens > 0


def test_an_agent_streams_text(model: OpenAIChatModel) -> None:
    agent = Agent(model, model_settings=ModelSettings(temperature=0, max_tokens=12))
    result = agent.run_stream_sync("Say hello.")
    assert "".join(result.stream_text(delta=True))
