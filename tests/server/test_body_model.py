from __future__ import annotations

import json

import pytest
from pydantic import BaseModel, ConfigDict

from tokenloom_server.api.items import Items
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
