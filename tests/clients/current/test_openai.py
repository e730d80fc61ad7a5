"""The openai package: chats, completions, streams, parsed answers, errors, many at once."""

from __future__ import annotations

import asyncio
import json

import httpx
import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from openai.types import chat, completion_create_params, responses
from pydantic import BaseModel, Field

HELLO = [{"role": "user", "content": "Say hello."}]


class Person(BaseModel):
    name: str = Field(max_length=8)
    age: int = Field(ge=0, le=120)


@pytest.fixture(scope="module")
def client(url: str) -> OpenAI:
    return OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=120)


@pytest.fixture(scope="module")
def model(client: OpenAI) -> str:
    (only,) = client.models.list().data
    assert client.models.retrieve(only.id) == only
    return only.id


def test_a_chat_and_its_stream(client: OpenAI, model: str) -> None:
    body = {"model": model, "messages": HELLO, "max_completion_tokens": 12, "temperature": 0}
    answer = client.chat.completions.create(**body, logprobs=True, top_logprobs=2)
    (choice,) = answer.choices
    assert choice.message.role == "assistant"
    assert choice.finish_reason in ("stop", "length")
    assert "".join(entry.token for entry in choice.logprobs.content) == choice.message.content
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    chunks = list(
        client.chat.completions.create(**body, stream=True, stream_options={"include_usage": True})
    )
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == choice.message.content
    assert chunks[-1].usage == answer.usage.model_copy(
        update={"prompt_tokens_details": chunks[-1].usage.prompt_tokens_details}
    )
    history = [*HELLO, choice.message, {"role": "user", "content": "Again."}]
    assert client.chat.completions.create(model=model, messages=history, max_tokens=2).choices


def test_the_streaming_helper(client: OpenAI, model: str) -> None:
    with client.chat.completions.stream(
        model=model, messages=HELLO, extra_body={"guided_regex": "Hello,( dear| old){2} you"}
    ) as stream:
        pieces = [event.delta for event in stream if event.type == "content.delta"]
        final = stream.get_final_completion()
    assert "".join(pieces) == final.choices[0].message.content
    assert final.choices[0].message.content.startswith("Hello, ")


def test_parsed_answers(client: OpenAI, model: str) -> None:
    messages = [{"role": "user", "content": "A person as JSON."}]
    answer = client.chat.completions.parse(
        model=model, messages=messages, response_format=Person, temperature=1.3, seed=4
    )
    assert isinstance(answer.choices[0].message.parsed, Person)
    with client.chat.completions.stream(
        model=model, messages=messages, response_format=Person
    ) as stream:
        for _ in stream:
            pass
        assert isinstance(stream.get_final_completion().choices[0].message.parsed, Person)
    with pytest.raises(openai.LengthFinishReasonError):
        client.chat.completions.parse(
            model=model, messages=messages, response_format=Person, max_tokens=3
        )


def test_json_mode_and_extra_fields(client: OpenAI, model: str) -> None:
    answer = client.chat.completions.create(
        model=model,
        messages=HELLO,
        max_tokens=40,
        extra_body={"structured_outputs": {"regex": '\\{"[a-z]{3}":[0-9]\\}'}, "top_k": 5},
    )
    assert len(json.loads(answer.choices[0].message.content)) == 1
    choice = client.chat.completions.create(
        model=model, messages=HELLO, n=2, extra_body={"guided_choice": ["yes", "no"]}
    ).choices[1]
    assert choice.message.content in ("yes", "no")


def test_completions(client: OpenAI, model: str) -> None:
    prompts = ["The capital of France is", "One, two, three,"]
    body = {"model": model, "prompt": prompts, "max_tokens": 2, "temperature": 0}
    answer = client.completions.create(**body, logprobs=1, echo=True)
    texts = [choice.text for choice in answer.choices]
    assert texts[0] == f"{prompts[0]} Paris."
    assert all(text.startswith(prompt) for text, prompt in zip(texts, prompts, strict=True))
    assert answer.choices[0].logprobs.token_logprobs[0] is None
    joined = ["", ""]
    for chunk in client.completions.create(**body, stream=True):
        joined[chunk.choices[0].index] += chunk.choices[0].text
    assert [prompt + text for prompt, text in zip(prompts, joined, strict=True)] == texts


def test_errors(client: OpenAI, model: str) -> None:
    with pytest.raises(openai.BadRequestError) as bad:
        client.chat.completions.create(model=model, messages=HELLO, temperature=-1)
    assert (bad.value.param, bad.value.code) == ("temperature", "invalid_value")
    assert "`temperature`" in bad.value.message
    with pytest.raises(openai.BadRequestError) as long:
        client.completions.create(model=model, prompt="x", max_tokens=10**6)
    assert long.value.code == "context_length_exceeded"
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="gpt-99", messages=HELLO)
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.NotFoundError):
        client.embeddings.create(model=model, input="x")
    named = client.with_options(default_headers={"x-request-id": "mine"})
    raw = named.chat.completions.with_raw_response.create(model=model, messages=HELLO, max_tokens=1)
    assert raw.request_id == "mine"


def test_an_error_in_the_middle_of_a_stream(client: OpenAI, model: str) -> None:
    ambiguous = 'start: e\ne: e e | "a"'
    with pytest.raises(openai.APIError, match="constraint"):
        for _ in client.chat.completions.create(
            model=model,
            messages=HELLO,
            max_tokens=1000,
            stream=True,
            extra_body={"ebnf": ambiguous, "logit_bias": {}},
        ):
            pass


@pytest.mark.parametrize(
    ("body", "params"),
    [
        ("ChatBody", chat.completion_create_params.CompletionCreateParamsStreaming),
        ("CompletionBody", completion_create_params.CompletionCreateParamsStreaming),
        ("ResponsesBody", responses.response_create_params.ResponseCreateParamsStreaming),
    ],
)
def test_every_field_has_its_place(url: str, body: str, params: type) -> None:
    """It works, or it must be absent; and absent is what null is, too."""
    document = httpx.get(f"{url}/api-doc/openapi.json", timeout=30).json()
    known = document["components"]["schemas"][body]["properties"]
    assert set(params.__annotations__) <= set(known)


def test_many_at_once(url: str, model: str) -> None:
    async def ask(client: AsyncOpenAI, number: int) -> str:
        answer = await client.chat.completions.create(
            model=model,
            messages=HELLO,
            max_tokens=16,
            extra_body={"guided_regex": f"number {number}[.!]"},
        )
        return answer.choices[0].message.content

    async def ask_all() -> list[str]:
        async with AsyncOpenAI(base_url=f"{url}/v1", api_key="none", timeout=120) as client:
            return await asyncio.gather(*(ask(client, number) for number in range(64)))

    texts = asyncio.run(ask_all())
    assert [text[:-1] for text in texts] == [f"number {number}" for number in range(64)]
