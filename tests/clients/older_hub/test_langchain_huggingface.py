"""LangChain's endpoint for TGI."""

from __future__ import annotations

import asyncio

import pytest
from langchain_huggingface import HuggingFaceEndpoint

PROMPT = "The capital of France is"


@pytest.fixture(scope="module")
def model(url: str) -> HuggingFaceEndpoint:
    return HuggingFaceEndpoint(
        endpoint_url=url, max_new_tokens=8, do_sample=False, temperature=None, timeout=120
    )


def test_text(model: HuggingFaceEndpoint) -> None:
    assert model.invoke(PROMPT).startswith(" Paris.")


def test_a_stream(model: HuggingFaceEndpoint) -> None:
    assert "".join(model.stream(PROMPT)) == model.invoke(PROMPT)


def test_a_stop_string(model: HuggingFaceEndpoint) -> None:
    assert model.invoke(PROMPT, stop=["."]).rstrip(".") == " Paris"


def test_asynchronously(model: HuggingFaceEndpoint) -> None:
    assert asyncio.run(model.ainvoke(PROMPT)).startswith(" Paris.")
