from __future__ import annotations

from typing import Any

import pytest

from tokenloom_engine.constraints.spec import ConstraintSpec
from tokenloom_engine.messages import LogprobParams
from tokenloom_router.errors import ValidationError
from tokenloom_router.request import GenerateRequest
from tokenloom_server.api.generate_request import CompatGenerateBody, GenerateBody


def request(*, stream: bool = False, **parameters: Any) -> GenerateRequest:  # noqa: ANN401
    body = GenerateBody.model_validate({"inputs": "a", "parameters": parameters})
    return body.to_request(stream=stream)


def test_the_defaults_are_the_same_with_and_without_parameters() -> None:
    expected = GenerateRequest(inputs="a")
    assert GenerateBody.model_validate({"inputs": "a"}).to_request(stream=False) == expected
    assert request() == expected
    assert not expected.do_sample


def test_every_parameter_arrives() -> None:
    given: dict[str, Any] = {
        "best_of": 2,
        "temperature": 0.5,
        "repetition_penalty": 1.1,
        "frequency_penalty": -0.5,
        "top_k": 7,
        "top_p": 0.9,
        "typical_p": 0.8,
        "do_sample": True,
        "max_new_tokens": 9,
        "ignore_eos": True,
        "seed": 2**64 - 1,
        "truncate": 3,
    }
    grammar = {"type": "regex", "value": "a+"}
    made = request(
        **given,
        stop=["x", "y"],
        grammar=grammar,
        details=True,
        decoder_input_details=True,
        top_n_tokens=2,
    )
    assert made == GenerateRequest(
        inputs="a",
        **given,
        stop=("x", "y"),
        constraint=ConstraintSpec("regex", "a+"),
        logprobs=LogprobParams(tokens=True, top_n_tokens=2, prompt=True),
    )


def test_integers_are_numbers_too() -> None:
    assert request(temperature=1).temperature == 1.0


@pytest.mark.parametrize(
    ("stream", "parameters", "wanted"),
    [
        (False, {}, False),
        (False, {"details": True}, True),
        (False, {"decoder_input_details": True}, True),
        (True, {}, True),
    ],
)
def test_logprobs_are_asked_for_where_they_are_shown(
    stream: bool, parameters: dict[str, Any], wanted: bool
) -> None:
    assert request(stream=stream, **parameters).logprobs.tokens is wanted


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"adapter_id": "some/adapter"}, "`adapter_id` must name a loaded adapter: none is"),
        ({"adapter_id": ""}, "`adapter_id` must name a loaded adapter: none is"),
        ({"adapter_id": "\ud800"}, "`adapter_id` is not valid Unicode text"),
    ],
)
def test_an_adapter_that_is_not_loaded(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        request(**parameters)


def test_forced_tokens_can_be_switched_off_for_a_request() -> None:
    assert request().forced_tokens
    assert not request(forced_tokens=False).forced_tokens


def test_a_watermark() -> None:
    assert request(watermark=True).watermark
    assert request(watermark=False) == GenerateRequest(inputs="a")


def test_the_compat_body_adds_stream() -> None:
    assert CompatGenerateBody.model_validate({"inputs": "a", "stream": True}).stream
    assert not CompatGenerateBody.model_validate({"inputs": "a"}).stream
