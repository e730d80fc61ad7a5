"""huggingface_hub's InferenceClient on TGI's own routes."""

from __future__ import annotations

import asyncio
import json
import re

import pytest
from huggingface_hub import AsyncInferenceClient, InferenceClient
from huggingface_hub.errors import ValidationError

PROMPT = "The capital of France is"
NEW = {"max_new_tokens": 2, "return_full_text": False}
"""The client asks `/`, where the prompt would come with the text."""
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "maximum": 120},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def client(url: str) -> InferenceClient:
    return InferenceClient(base_url=url, timeout=120)


def test_text(client: InferenceClient) -> None:
    assert client.text_generation(PROMPT, max_new_tokens=2) == f"{PROMPT} Paris."
    assert client.text_generation(PROMPT, **NEW) == " Paris."


def test_details(client: InferenceClient) -> None:
    response = client.text_generation(
        PROMPT, max_new_tokens=2, details=True, decoder_input_details=True, top_n_tokens=3
    )
    details = response.details
    assert (details.finish_reason, details.generated_tokens) == ("length", 2)
    assert "".join(token.text for token in details.prefill) == PROMPT
    assert [token.text for token in details.tokens] == [" Paris", "."]
    assert [len(top) for top in details.top_tokens] == [3, 3]


def test_a_stream(client: InferenceClient) -> None:
    whole = client.text_generation(PROMPT, **NEW)
    assert "".join(client.text_generation(PROMPT, **NEW, stream=True)) == whole
    *_, last = client.text_generation(PROMPT, **NEW, stream=True, details=True)
    assert last.generated_text == whole
    assert (last.index, last.details.input_length) == (2, 5)


def test_grammars(client: InferenceClient) -> None:
    regex = {"type": "regex", "value": "[0-9]{4}"}
    text = client.text_generation("Rome fell in ", grammar=regex, return_full_text=False)
    assert re.fullmatch("[0-9]{4}", text)
    grammar = {"type": "json", "value": SCHEMA}
    pieces = client.text_generation("A person: ", grammar=grammar, max_new_tokens=50, stream=True)
    assert set(json.loads("".join(pieces))) == {"name", "age"}


def test_a_drawn_text_with_every_parameter(client: InferenceClient) -> None:
    given = {
        "do_sample": True,
        "frequency_penalty": 0.1,
        "max_new_tokens": 10,
        "repetition_penalty": 1.2,
        "seed": 5,
        "stop": ["zzz"],
        "temperature": 0.9,
        "top_k": 20,
        "top_p": 0.9,
        "truncate": 4,
        "typical_p": 0.9,
        "watermark": True,
    }
    first, second = (client.text_generation(PROMPT, **given, details=True) for _ in range(2))
    assert first.generated_text == second.generated_text
    assert first.details.seed == 5


@pytest.mark.parametrize("stream", [False, True])
def test_errors_have_their_classes(client: InferenceClient, stream: bool) -> None:
    with pytest.raises(ValidationError, match="must be <= "):
        list(client.text_generation(PROMPT, max_new_tokens=1_000_000, stream=stream))
    with pytest.raises(ValidationError, match="grammar is not valid"):
        grammar = {"type": "regex", "value": "("}
        list(client.text_generation(PROMPT, grammar=grammar, stream=stream))


def test_an_unknown_adapter(client: InferenceClient) -> None:
    with pytest.raises(ValidationError, match="some/adapter"):
        client.text_generation(PROMPT, adapter_id="some/adapter")


def test_asynchronously(url: str) -> None:
    async def texts() -> list[str]:
        client = AsyncInferenceClient(base_url=url, timeout=120)
        return await asyncio.gather(*(client.text_generation(PROMPT, **NEW) for _ in range(4)))

    assert asyncio.run(texts()) == [" Paris."] * 4
