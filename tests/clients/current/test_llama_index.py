"""llama-index, by its class for OpenAI-like servers."""

from __future__ import annotations

import pytest
from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike


def get_weather(city: str) -> str:
    """The weather in a city."""
    return f"sunny in {city}"


@pytest.fixture(scope="module")
def llm(url: str) -> OpenAILike:
    return OpenAILike(
        model="tgi",
        api_base=f"{url}/v1",
        api_key="none",
        temperature=0,
        max_tokens=40,
        timeout=120,
        max_retries=0,
        is_chat_model=True,
        is_function_calling_model=True,
    )


def test_chats_whole_and_streamed(llm: OpenAILike) -> None:
    messages = [ChatMessage(role="user", content="Say hello.")]
    whole = llm.chat(messages).message.content
    assert whole and whole == "".join(piece.delta or "" for piece in llm.stream_chat(messages))


def test_completions(url: str) -> None:
    llm = OpenAILike(model="tgi", api_base=f"{url}/v1", api_key="none", max_tokens=4, temperature=0)
    assert llm.complete("The capital of France is").text


def test_a_call(llm: OpenAILike) -> None:
    tool = FunctionTool.from_defaults(get_weather)
    response = llm.chat_with_tools([tool], user_msg="Weather in Rome?", tool_required=True)
    (call, *_) = llm.get_tool_calls_from_response(response)
    assert call.tool_name == "get_weather" and call.tool_kwargs["city"]
