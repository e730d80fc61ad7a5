"""The `text-generation` package: TGI's own client."""

from __future__ import annotations

import asyncio
import json
import re

import pytest
from text_generation import AsyncClient, Client
from text_generation.errors import OverloadedError, ValidationError
from text_generation.types import FinishReason, Grammar, GrammarType

PROMPT = "The capital of France is"
YEAR = Grammar(type=GrammarType.Regex, value="[0-9]{4}")


@pytest.fixture(scope="module")
def client(url: str) -> Client:
    return Client(url, timeout=120)


@pytest.fixture(scope="module")
def async_client(url: str) -> AsyncClient:
    return AsyncClient(url, timeout=120)


def test_details(client: Client) -> None:
    response = client.generate(
        PROMPT, max_new_tokens=2, decoder_input_details=True, top_n_tokens=2, return_full_text=True
    )
    assert response.generated_text == f"{PROMPT} Paris."
    details = response.details
    assert (details.finish_reason, details.generated_tokens) == (FinishReason.Length, 2)
    assert details.seed is None
    assert "".join(token.text for token in details.prefill) == PROMPT
    assert details.prefill[0].logprob is None
    assert [token.text for token in details.tokens] == [" Paris", "."]
    assert [len(top) for top in details.top_tokens] == [2, 2]


def test_best_of(client: Client) -> None:
    details = client.generate(PROMPT, max_new_tokens=4, best_of=2, do_sample=True).details
    (other,) = details.best_of_sequences
    assert details.seed is not None
    assert other.seed is not None
    assert details.seed != other.seed


def test_every_parameter(client: Client) -> None:
    response = client.generate(
        PROMPT,
        do_sample=True,
        max_new_tokens=10,
        repetition_penalty=1.2,
        frequency_penalty=0.1,
        return_full_text=True,
        seed=3,
        stop_sequences=["zzz"],
        temperature=0.5,
        top_k=10,
        top_p=0.9,
        truncate=4,
        typical_p=0.9,
        watermark=True,
        decoder_input_details=True,
    )
    assert response.generated_text.startswith(PROMPT)
    assert len(response.details.prefill) == 4
    assert response.details.seed == 3


def test_a_grammar(client: Client) -> None:
    text = client.generate("Rome fell in ", max_new_tokens=10, grammar=YEAR).generated_text
    assert re.fullmatch("[0-9]{4}", text)


def test_a_stream(client: Client) -> None:
    whole = client.generate(PROMPT, max_new_tokens=8)
    events = list(client.generate_stream(PROMPT, max_new_tokens=8))
    texts = [event.token.text for event in events if not event.token.special]
    assert "".join(texts) == whole.generated_text == events[-1].generated_text
    assert [event.token.id for event in events] == [token.id for token in whole.details.tokens]
    assert events[-1].details.finish_reason == FinishReason.Length


def test_a_chat(client: Client) -> None:
    answer = client.chat([{"role": "user", "content": "Say hello."}], max_tokens=8, temperature=0.1)
    (choice,) = answer.choices
    assert choice.message.content and choice.finish_reason in ("stop", "length")


def test_errors_have_their_classes(client: Client) -> None:
    with pytest.raises(ValidationError, match="must be <= "):
        client.generate(PROMPT, max_new_tokens=1_000_000)
    with pytest.raises(ValidationError, match="must be <= "):
        list(client.generate_stream(PROMPT, max_new_tokens=1_000_000))


def test_many_at_once(async_client: AsyncClient) -> None:
    schema = {
        "type": "object",
        "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 99}},
        "required": ["n"],
        "additionalProperties": False,
    }
    grammar = Grammar(type=GrammarType.Json, value=schema)

    async def whole() -> str:
        response = await async_client.generate("JSON:", max_new_tokens=20, grammar=grammar)
        return response.generated_text

    async def stream() -> str:
        events = async_client.generate_stream("Rome fell in ", max_new_tokens=10, grammar=YEAR)
        return "".join([event.token.text async for event in events if not event.token.special])

    async def both() -> tuple[list[str], list[str]]:
        wholes = asyncio.gather(*(whole() for _ in range(4)))
        streams = asyncio.gather(*(stream() for _ in range(4)))
        return await wholes, await streams

    wholes, streams = asyncio.run(both())
    assert all(isinstance(json.loads(text)["n"], int) for text in wholes)
    assert all(re.fullmatch("[0-9]{4}", text) for text in streams)


def test_an_asynchronous_error(async_client: AsyncClient) -> None:
    async def fail() -> None:
        await async_client.generate(PROMPT, max_new_tokens=1_000_000)

    async def fail_streaming() -> None:
        async for _ in async_client.generate_stream(PROMPT, max_new_tokens=1_000_000):
            pass

    for failing in (fail, fail_streaming):
        with pytest.raises(ValidationError, match="must be <= "):
            asyncio.run(failing())


def test_a_full_server_is_overloaded(async_client: AsyncClient) -> None:
    async def ask() -> str:
        response = await async_client.generate(PROMPT, max_new_tokens=3, best_of=2, do_sample=True)
        return response.generated_text

    async def crowd() -> list[str | BaseException]:
        return await asyncio.gather(*(ask() for _ in range(90)), return_exceptions=True)

    answers = asyncio.run(crowd())
    errors = [answer for answer in answers if not isinstance(answer, str)]
    assert 0 < len(errors) < len(answers)
    assert all(isinstance(error, OverloadedError) for error in errors)
    assert str(errors[0]) == "Model is overloaded"
    assert asyncio.run(ask())
