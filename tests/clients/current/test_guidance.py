"""guidance over its model for vLLM: its grammars run on the server, its captures in the client."""

from __future__ import annotations

from typing import Any

import pytest
from guidance import assistant, gen, json, regex, select, user
from guidance.models.experimental import VLLMModel
from pydantic import BaseModel, ConfigDict, Field


class Person(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: str = Field(max_length=8)
    age: int = Field(ge=0, le=120)


@pytest.fixture(scope="module")
def asked(url: str) -> Any:  # noqa: ANN401 - guidance has no types
    lm = VLLMModel("tgi", base_url=f"{url}/v1", api_key="none")
    with user():
        lm += "Tell me of the sea."
    return lm


def test_a_choice_is_captured(asked: Any) -> None:  # noqa: ANN401
    lm = asked
    with assistant():
        lm += "It is " + select(["wet", "dry"], name="answer") + "."
    assert lm["answer"] in ("wet", "dry")
    assert str(lm).count(f"It is {lm['answer']}.") == 1


def test_a_regular_expression_is_captured(asked: Any) -> None:  # noqa: ANN401
    lm = asked
    with assistant():
        lm += "Depth: " + regex("[1-9][0-9]{1,3}", name="depth") + " m"
    assert 10 <= int(lm["depth"]) <= 9999


def test_generations_have_their_own_temperatures_and_ends(asked: Any) -> None:  # noqa: ANN401
    lm = asked
    with assistant():
        # The client takes one grammar a message.
        cold = gen("cold", max_tokens=6, temperature=0.0, stop="\n")
        warm = gen("warm", max_tokens=6, temperature=1.2, regex="[a-z]{3,12}")
        lm += "Word: " + cold + "\nOther: " + warm
    assert lm["cold"] and "\n" not in lm["cold"]
    assert lm["warm"].isalpha() and 3 <= len(lm["warm"]) <= 12


def test_json_of_a_model(asked: Any) -> None:  # noqa: ANN401
    lm = asked
    with assistant():
        lm += json("person", schema=Person)
    Person.model_validate_json(lm["person"])
