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


def told(model: type[BaseModel], given: dict[str, Any]) -> tuple[str | int, ...]:
    with pytest.raises(InvalidBody) as raised:
        BodyModel(model).parse(json.dumps(given).encode())
    place: tuple[str | int, ...] = raised.value.error.errors()[0]["loc"][1:]
    return place


@pytest.mark.parametrize(
    ("form", "place"),
    [
        ({"type": "json"}, ("value",)),
        ({"type": "json", "value": 3}, ("value",)),
        ({"type": "regex", "regex": "a"}, ("value",)),
        ({"type": "text", "text": "a"}, ("text",)),
        ({"type": "json_schema", "json_schema": {"name": 3}}, ("json_schema", "name")),
        ({"type": "json_schema", "json_schema": {"Name": "a"}}, ("json_schema", "Name")),
        ({"type": "json_schema", "json_schema": {}, "schema": {}}, ("schema",)),
        ({"type": "json_schema", "schema": {}}, ("schema",)),
        ({"type": "structural_tag", "structures": [3]}, ("structures", 0)),
        ({"type": "xml"}, ()),
    ],
)
def test_the_place_has_names_of_fields_alone(form: Any, place: tuple[str | int, ...]) -> None:  # noqa: ANN401
    given = {"messages": [{"role": "user", "content": "a"}], "response_format": form}
    assert told(ChatBody, given) == ("response_format", *place)


@pytest.mark.parametrize("name", ["Temperature", "max-tokens", "str", "function-after", "9", ""])
def test_whatever_a_field_is_called_its_name_is_told(name: str) -> None:
    message = {"role": "user", "content": "a"}
    tool = {"type": "function", "function": {"name": "a", name: 1}}
    assert told(ChatBody, {"messages": [message], name: 1}) == (name,)
    place = ("tools", 0, "function", name)
    assert told(ChatBody, {"messages": [message], "tools": [tool]}) == place
    grammar = {"type": "regex", "value": "a", name: 1}
    body = {"inputs": "a", "parameters": {"grammar": grammar}}
    assert told(GenerateBody, body) == ("parameters", "grammar", name)
    chat = {"messages": [message], name: 1}
    assert told(VertexBody, {"instances": [{"inputs": "a"}, chat]}) == ("instances", 1, name)
    item = {"type": "function_call", "call_id": "a", "name": 3}
    assert told(ResponsesBody, {"input": [item], name: 1}) == ("input", 0, "name")


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
