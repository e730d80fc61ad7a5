from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict, TypeAdapter

from tokenloom_server.api.generate_request import CompatGenerateBody, GenerateBody
from tokenloom_server.api.items import Items
from tokenloom_server.api.openai.chat_request import ChatBody
from tokenloom_server.api.openai.completion_request import CompletionBody
from tokenloom_server.api.openai.responses_request import ResponsesBody
from tokenloom_server.api.vertex import VertexBody
from tokenloom_server.body_model import BodyModel, InvalidBody
from tokenloom_server.json_body import BodyError


class Body(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")

    words: Items[str]
    number: int = 0


def test_what_a_body_says() -> None:
    body = BodyModel(Body).parse(b'{"words": ["a", "b"]}')
    assert body == Body(words=["a", "b"])


@pytest.mark.parametrize(
    ("given", "place"),
    [
        ({"words": ["a", 1, 2]}, ("body", "words", 1)),
        ({"words": [1], "number": "x"}, ("body", "words", 0)),
        ({"number": "x", "wrong": 1}, ("body", "words")),
        ({"words": [], "wrong": 1, "other": 2}, ("body", "wrong")),
    ],
)
def test_the_first_fault_is_told(given: object, place: tuple[str | int, ...]) -> None:
    with pytest.raises(InvalidBody) as raised:
        BodyModel(Body).parse(json.dumps(given).encode())
    (fault,) = raised.value.error.errors()
    assert fault["loc"] == place


def test_what_is_no_json() -> None:
    with pytest.raises(BodyError):
        BodyModel(Body).parse(b"{")


def lists(schema: object) -> Iterator[dict[str, Any]]:
    """The schemas of lists, whose items are validated, in pydantic's schema of a model."""
    if isinstance(schema, dict):
        if schema.get("type") == "list" and schema.get("items_schema", {}).get("type") != "any":
            yield schema
        for name, part in schema.items():
            if name != "json_schema_input_schema":  # documents, and validates nothing
                yield from lists(part)
    elif isinstance(schema, (list, tuple)):
        for part in schema:
            yield from lists(part)


@pytest.mark.parametrize(
    "model",
    [GenerateBody, CompatGenerateBody, CompletionBody, ChatBody, ResponsesBody, VertexBody],
)
def test_every_list_in_a_body_is_read_up_to_its_first_fault(model: type[BaseModel]) -> None:
    found = list(lists(TypeAdapter(model).core_schema))
    assert found
    assert [schema for schema in found if not schema.get("fail_fast")] == []
