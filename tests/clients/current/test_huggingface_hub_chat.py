"""huggingface_hub's InferenceClient on OpenAI's routes. It calls the model `dummy`."""

from __future__ import annotations

import json

import pytest
from huggingface_hub import InferenceClient
from huggingface_hub.errors import BadRequestError

HELLO = [{"role": "user", "content": "Say hello."}]
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "old": {"type": "boolean"}},
    "required": ["name", "old"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module", params=["base_url", "openai's base_url", "model"])
def client(url: str, request: pytest.FixtureRequest) -> InferenceClient:
    if request.param == "model":
        return InferenceClient(model=url, timeout=120)
    return InferenceClient(base_url=url + "/v1" * (request.param != "base_url"), timeout=120)


def test_a_chat_and_its_stream(client: InferenceClient) -> None:
    whole = client.chat_completion(HELLO, max_tokens=8, temperature=0, logprobs=True)
    (choice,) = whole.choices
    assert choice.message.content
    assert "".join(entry.token for entry in choice.logprobs.content) == choice.message.content
    assert whole.usage.completion_tokens == 8
    streamed = list(client.chat_completion(HELLO, max_tokens=8, temperature=0, stream=True))
    pieces = [chunk.choices[0].delta.content or "" for chunk in streamed]
    assert "".join(pieces) == choice.message.content
    assert streamed[-1].choices[0].finish_reason == "length"
    assert all(chunk.usage is None for chunk in streamed)
    *_, last = client.chat_completion(
        HELLO, max_tokens=8, stream=True, stream_options={"include_usage": True}
    )
    assert last.usage.completion_tokens == 8


@pytest.mark.parametrize(
    "form",
    [
        {"type": "json", "value": SCHEMA},
        {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA, "strict": True}},
    ],
)
def test_json(client: InferenceClient, form: dict[str, object]) -> None:
    answer = client.chat_completion(HELLO, max_tokens=60, response_format=form, seed=1)
    assert set(json.loads(answer.choices[0].message.content)) == {"name", "old"}


def test_errors(client: InferenceClient) -> None:
    with pytest.raises(BadRequestError, match="temperature"):
        client.chat_completion(HELLO, temperature=-1)
