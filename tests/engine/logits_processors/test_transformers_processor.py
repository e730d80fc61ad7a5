"""Classes of transformers as logits processors."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import SuppressTokensLogitsProcessor

from tests.engine.processors import CONTEXT, NO_REPEAT, V
from tokenloom_engine.logits_processors import from_transformers


@pytest.mark.parametrize(
    ("args", "reason"),
    [
        ({"ngram_size": 0}, "strictly positive"),
        ({}, "ngram_size"),
        ({"ngram_size": 2, "more": 1}, "more"),
    ],
)
def test_a_constructor_of_transformers_judges_its_arguments(
    args: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        NO_REPEAT(CONTEXT).validate(args)


def test_fixed_arguments_and_the_device_cannot_be_given() -> None:
    seen: dict[str, Any] = {}

    class Known(SuppressTokensLogitsProcessor):
        def __init__(self, suppress_tokens: list[int], device: str = "elsewhere") -> None:
            seen.update(device=device)
            super().__init__(suppress_tokens, device)

    factory = from_transformers(Known, suppress_tokens=[3])(CONTEXT)
    scores = factory.get_processor({})([1, 2], torch.zeros(V))
    assert seen["device"] == "cpu"
    assert (scores == -torch.inf).nonzero().tolist() == [[3]]
    for name in ("suppress_tokens", "device"):
        with pytest.raises(ValueError, match=f"`{name}` cannot be given"):
            factory.validate({name: 1})
