"""outlines, which asks for structured output on TGI's own routes."""

from __future__ import annotations

import outlines
import pytest
from huggingface_hub import InferenceClient
from outlines.types import Regex
from pydantic import BaseModel, Field

NEW = {"max_new_tokens": 60, "return_full_text": False}
"""The client asks `/`, where the prompt would come with the text."""


class Person(BaseModel):
    name: str = Field(max_length=10)
    age: int = Field(ge=0, le=120)


@pytest.fixture(scope="module")
def model(url: str) -> outlines.models.TGI:
    return outlines.from_tgi(InferenceClient(base_url=url, timeout=120))


def test_a_regular_expression(model: outlines.models.TGI) -> None:
    text = model("Rome fell in ", Regex("[0-9]{4}"), **NEW)
    assert len(text) == 4
    assert text.isdecimal()


def test_json(model: outlines.models.TGI) -> None:
    Person.model_validate_json(model("A person: ", Person, **NEW))


def test_a_stream(model: outlines.models.TGI) -> None:
    pieces = model.stream("A person: ", Person, **NEW)
    Person.model_validate_json("".join(pieces))
