from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from tokenloom_engine.messages import LogitsProcessorSpec, LogprobParams, SamplingParams
from tokenloom_router.errors import ValidationError
from tokenloom_router.limits import Limits
from tokenloom_router.parameters import (
    is_sampling,
    sampling_params,
    validate_best_of,
    validate_parameters,
)
from tokenloom_router.request import GenerateRequest

LIMITS = Limits(
    max_concurrent_requests=8,
    max_best_of=2,
    max_stop_sequences=2,
    max_top_n_tokens=5,
    max_input_tokens=20,
    max_total_tokens=30,
    vocab_size=1000,
    logits_processors=("known", "other"),
)
NUMBERS = (
    "temperature",
    "repetition_penalty",
    "frequency_penalty",
    "top_p",
    "typical_p",
)


def nested(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels - 1):
        value = [value]
    return value


def refusal(**fields: Any) -> str:  # noqa: ANN401
    with pytest.raises(ValidationError) as raised:
        validate_parameters(replace(GenerateRequest(inputs="hi"), **fields), LIMITS)
    return str(raised.value).removeprefix("Input validation error: ")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"best_of": 2}, "you must use sampling when `best_of` is > 1"),
        ({"temperature": 0.0}, "`temperature` must be strictly positive"),
        ({"temperature": -1.0}, "`temperature` must be strictly positive"),
        ({"temperature": 1e-46}, "`temperature` must be strictly positive"),
        ({"repetition_penalty": 0.0}, "`repetition_penalty` must be strictly positive"),
        ({"frequency_penalty": 2.1}, "`frequency_penalty` must be >= -2.0 and <= 2.0"),
        ({"frequency_penalty": -2.1}, "`frequency_penalty` must be >= -2.0 and <= 2.0"),
        ({"top_p": 0.0}, "`top_p` must be > 0.0 and <= 1.0"),
        ({"top_p": 1.01}, "`top_p` must be > 0.0 and <= 1.0"),
        ({"typical_p": 0.0}, "`typical_p` must be > 0.0 and <= 1.0"),
        ({"typical_p": 1.01}, "`typical_p` must be > 0.0 and <= 1.0"),
        ({"top_k": 0}, "`top_k` must be strictly positive"),
        ({"top_k": -1}, "`top_k` must be strictly positive"),
        ({"max_new_tokens": 0}, "`max_new_tokens` must be strictly positive"),
        ({"stop": ("a", "b", "c")}, "`stop` supports up to 2 stop sequences. Given: 3"),
        (
            {"logits_processors": (LogitsProcessorSpec("absent"),)},
            "`logits_processors` must have names of installed logits processors: known, other. "
            "Given: absent",
        ),
        (
            {"logits_processors": (LogitsProcessorSpec("known"),) * 9},
            "`logits_processors` supports up to 8 logits processors. Given: 9",
        ),
        (
            {"logits_processors": (LogitsProcessorSpec("\ud83d"),)},
            "`logits_processors` is not valid Unicode text",
        ),
        *(
            (
                {"logits_processors": (LogitsProcessorSpec("known", {"a": value}),)},
                f"`logits_processors`: known: {problem}",
            )
            for value, problem in [
                ("\ud83d", "not valid Unicode text"),
                ({"\ud83d": 1}, "not valid Unicode text"),
                (2**64, "integers must have at most 64 bits"),
                (nested(16), "nested deeper than 16"),
                (nested(100_000), "nested deeper than 16"),
            ]
        ),
        ({"stop": ("",)}, "`stop` cannot contain an empty string"),
        ({"stop": ("a" * 4097,)}, "`stop` must have strings of <= 4096 characters"),
        ({"stop": ("\ud83d",)}, "`stop` is not valid Unicode text"),
        (
            {"seed": 1, "best_of": 2, "do_sample": True},
            "`seed` must not be set when `best_of` > 1",
        ),
        ({"seed": -1}, "`seed` must be >= 0 and <= 18446744073709551615. Given: -1"),
        (
            {"seed": 2**64},
            "`seed` must be >= 0 and <= 18446744073709551615. Given: 18446744073709551616",
        ),
        (
            {"logprobs": LogprobParams(top_n_tokens=6)},
            "`top_n_tokens` must be >= 0 and <= 5. Given: 6",
        ),
        ({"inputs": ""}, "`inputs` cannot be empty"),
        ({"inputs": "\udc00"}, "`inputs` is not valid Unicode text"),
        ({"truncate": 0}, "`truncate` must be strictly positive and less than 20. Given: 0"),
        ({"truncate": 21}, "`truncate` must be strictly positive and less than 20. Given: 21"),
        (
            {"stream": True, "logprobs": LogprobParams(prompt=True)},
            "`decoder_input_details` == true is not supported when streaming tokens",
        ),
    ],
)
def test_refusals(fields: dict[str, Any], message: str) -> None:
    assert refusal(**fields) == message


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e39])
def test_numbers_that_are_none(name: str, value: float) -> None:
    assert refusal(**{name: value}) == f"`{name}` must be a finite number"


def test_the_first_broken_rule_is_reported() -> None:
    broken: dict[str, Any] = {
        "temperature": 0.0,
        "repetition_penalty": 0.0,
        "frequency_penalty": 9.0,
        "top_p": 0.0,
        "typical_p": 0.0,
        "top_k": 0,
        "max_new_tokens": 0,
        "stop": ("a", "b", "c"),
        "seed": -1,
        "inputs": "",
    }
    while broken:
        name = next(iter(broken))
        assert f"`{name}`" in refusal(**broken)
        del broken[name]


def test_the_edges_are_allowed() -> None:
    request = GenerateRequest(
        inputs="hi",
        temperature=1e-3,
        frequency_penalty=-2.0,
        top_p=1.0,
        typical_p=1.0,
        top_k=1,
        max_new_tokens=1,
        stop=("a", "b"),
        logits_processors=(LogitsProcessorSpec("other", {"a": [nested(14), 2**64 - 1]}),) * 8,
        seed=2**64 - 1,
        truncate=20,
        logprobs=LogprobParams(top_n_tokens=5),
    )
    other_edges = replace(request, seed=0, frequency_penalty=2.0)
    for allowed in (request, other_edges):
        validate_parameters(allowed, LIMITS)
        params = sampling_params(allowed, allowed.seed, LIMITS)
        assert (params.top_k, params.top_p, params.typical_p) == (1, 1.0, 1.0)


@pytest.mark.parametrize(
    ("fields", "max_best_of", "message"),
    [
        ({"best_of": 3}, 2, "`best_of` must be > 0 and <= 2. Given: 3"),
        ({"best_of": 0}, 2, "`best_of` must be > 0 and <= 2. Given: 0"),
        ({"best_of": 2}, 1, "`best_of` != 1 is not allowed for this endpoint"),
        (
            {"best_of": 2, "stream": True},
            2,
            "`best_of` != 1 is not supported when streaming tokens",
        ),
    ],
)
def test_best_of_out_of_range(fields: dict[str, Any], max_best_of: int, message: str) -> None:
    limits = replace(LIMITS, max_best_of=max_best_of)
    with pytest.raises(ValidationError) as raised:
        validate_best_of(GenerateRequest(inputs="hi", **fields), limits)
    assert str(raised.value) == f"Input validation error: {message}"


@pytest.mark.parametrize(
    ("fields", "best_of"),
    [({}, 1), ({"best_of": 1, "stream": True}, 1), ({"best_of": 2}, 2)],
)
def test_best_of_in_range(fields: dict[str, Any], best_of: int) -> None:
    assert validate_best_of(GenerateRequest(inputs="hi", **fields), LIMITS) == best_of


@pytest.mark.parametrize(
    "fields",
    [{"do_sample": True}, {"temperature": 1.0}, {"top_k": 1}, {"top_p": 1.0}, {"typical_p": 0.5}],
)
def test_what_makes_a_request_sample(fields: dict[str, Any]) -> None:
    assert is_sampling(GenerateRequest(inputs="hi", **fields))


def test_what_does_not() -> None:
    request = GenerateRequest(
        inputs="hi", seed=1, repetition_penalty=1.5, frequency_penalty=1.0, do_sample=False
    )
    assert not is_sampling(request)
    assert sampling_params(request, None, LIMITS) == SamplingParams(
        repetition_penalty=1.5, frequency_penalty=1.0
    )


def test_parameters_for_the_engine() -> None:
    request = GenerateRequest(inputs="hi", temperature=0.5, top_k=5000, top_p=0.9, typical_p=0.8)
    assert sampling_params(request, 7, LIMITS) == SamplingParams(
        greedy=False, temperature=0.5, top_k=1000, top_p=0.9, typical_p=0.8, seed=7
    )
    assert sampling_params(GenerateRequest(inputs="hi", do_sample=True), 7, LIMITS) == (
        SamplingParams(greedy=False, seed=7)
    )
