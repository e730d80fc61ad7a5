"""instructor: models of pydantic, by schema and by call."""

from __future__ import annotations

from typing import Any

import instructor
import openai
import pytest
from pydantic import BaseModel, Field


class Person(BaseModel):
    name: str = Field(max_length=8)
    age: int = Field(ge=0, le=120)


@pytest.mark.parametrize("mode", [instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA])
def test_a_model_is_filled(url: str, mode: Any) -> None:  # noqa: ANN401
    plain = openai.OpenAI(base_url=f"{url}/v1", api_key="none", timeout=120)
    client = instructor.from_openai(plain, mode=mode)
    person = client.chat.completions.create(
        model="tgi",
        response_model=Person,
        messages=[{"role": "user", "content": "A person: Anna, 34."}],
        max_tokens=80,
        temperature=0,
        max_retries=0,
    )
    assert isinstance(person, Person)
