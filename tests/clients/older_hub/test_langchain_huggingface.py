"""LangChain's endpoint for TGI."""

from __future__ import annotations

import asyncio

import pytest
from langchain_huggingface import HuggingFaceEndpoint

PROMPT = "The capital of France is"


@pytest.fixture(scope="module")
def model(url: str) -> HuggingFaceEndpoint:
    # Its own defaults draw, among few tokens; with a seed each time the same.
    return HuggingFaceEndpoint(endpoint_url=url, max_new_tokens=8, seed=1, timeout=120)


def test_text(model: HuggingFaceEndpoint) -> None:
    assert model.invoke(PROMPT)


def test_a_stream(model: HuggingFaceEndpoint) -> None:
    streamed = "".join(model.stream(PROMPT))  # special tokens, too
    assert streamed.removesuffix("<|im_end|>") == model.invoke(PROMPT)


def test_a_stop_string(model: HuggingFaceEndpoint) -> None:
    whole = model.invoke(PROMPT)
    stop = whole[3:5]
    assert model.invoke(PROMPT, stop=[stop]) == whole[: whole.index(stop)]


def test_asynchronously(model: HuggingFaceEndpoint) -> None:
    assert asyncio.run(model.ainvoke(PROMPT)) == model.invoke(PROMPT)
