"""outlines over OpenAI's dialect, as it talks to vLLM, SGLang and OpenAI."""

from __future__ import annotations

import re
from typing import Any, Literal

import openai
import outlines
import pytest
from outlines.types import CFG
from pydantic import BaseModel, Field

SUM = 'start: number ("+" number)+\nnumber: /[1-9]/'


class Person(BaseModel):
    name: str
    age: int


class ShortPerson(BaseModel):
    name: str = Field(max_length=8)
    age: int


@pytest.fixture(scope="module")
def client(url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key="none", timeout=120)


@pytest.mark.parametrize("make", [outlines.from_vllm, outlines.from_sglang], ids=["vllm", "sglang"])
def test_servers(client: openai.OpenAI, make: Any) -> None:  # noqa: ANN401
    model = make(client, "tgi")
    assert model("Yes or no?", Literal["yes", "no"], max_tokens=8) in ("yes", "no")
    assert int(model("A number: ", int, max_tokens=8)) is not None
    pattern = outlines.regex("[0-9]{2}-[0-9]{2}")
    assert re.fullmatch("[0-9]{2}-[0-9]{2}", model("A date: ", pattern, max_tokens=12))
    person = model("A person: ", ShortPerson, max_tokens=60, temperature=0.0)
    ShortPerson.model_validate_json(person)
    text = model("A sum: ", CFG(SUM), max_tokens=40, temperature=0.0)
    assert re.fullmatch(r"[1-9](\+[1-9])*\+?", text), "it may be cut"
    pieces = list(model.stream("Hi", outlines.regex("[a-z]{4}"), max_tokens=8))
    assert re.fullmatch("[a-z]{4}", "".join(pieces))


def test_openai(client: openai.OpenAI) -> None:
    model = outlines.from_openai(client, "tgi")
    answer = model("A person: Anna, 34.", Person, max_tokens=100, temperature=0.0)
    Person.model_validate_json(answer)
    assert model("Say hello.", max_tokens=4)
