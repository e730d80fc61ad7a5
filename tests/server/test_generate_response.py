from __future__ import annotations

from dataclasses import replace
from typing import Any

from tokenloom_engine.messages import (
    Finish,
    LogprobParams,
    SamplingParams,
    StoppingParams,
    Token,
    TopToken,
)
from tokenloom_router.request import GenerateResponse, Generation, Timings, ValidRequest
from tokenloom_server.api.generate_response import response_body
from tokenloom_server.api.headers import response_headers, stream_headers

BEST = Generation(
    tokens=[Token(1, "x", -0.5), Token(0, "</s>", -0.25, special=True)],
    prompt=[],
    finish=Finish("eos_token", "x", 2, 0),
    seed=None,
)
OTHER = Generation(
    tokens=[Token(2, "y", -1.5, top=[TopToken(2, "y", -1.5, False), TopToken(0, "", -2.0, True)])],
    prompt=[Token(9, "p"), Token(8, "q", -3.0)],
    finish=Finish("length", "y", 1, 1),
    seed=5,
)
REQUEST = ValidRequest(
    prompt_ids=[9, 8],
    inputs="Wie heißt er? 🙂",
    sampling=SamplingParams(),
    stopping=StoppingParams(max_new_tokens=2),
    logprobs=LogprobParams(),
    constraint=None,
    best_of=1,
    seed=None,
)
TIMINGS = Timings(
    received_at=10.0, validated_at=10.5, started_at=10.75, first_token_at=11.0, finished_at=12.0
)


def response(*generations: Generation) -> GenerateResponse:
    return GenerateResponse(generations=list(generations), request=REQUEST, timings=TIMINGS)


def details(*generations: Generation, prefix: str = "") -> dict[str, Any]:
    body: Any = response_body(response(*generations), prefix=prefix, with_details=True)
    found: dict[str, Any] = body["details"]
    return found


def test_the_text_alone() -> None:
    body = response_body(response(BEST), prefix="", with_details=False)
    assert body == {"generated_text": "x"}
    body = response_body(response(BEST, OTHER), prefix="before ", with_details=False)
    assert body == {"generated_text": "before x"}


def test_details() -> None:
    body = response_body(response(BEST), prefix="", with_details=True)
    assert body == {
        "generated_text": "x",
        "details": {
            "finish_reason": "eos_token",
            "generated_tokens": 2,
            "seed": None,
            "prefill": [],
            "tokens": [
                {"id": 1, "text": "x", "logprob": -0.5, "special": False},
                {"id": 0, "text": "</s>", "logprob": -0.25, "special": True},
            ],
        },
    }


def test_a_masked_alternative_says_so() -> None:
    top = [TopToken(2, "y", -0.5, False, masked=True), TopToken(1, "x", -1.5, False)]
    found = details(replace(BEST, tokens=[Token(1, "x", -1.5, top=top)]))
    assert found["top_tokens"] == [
        [
            {"id": 2, "text": "y", "logprob": -0.5, "special": False, "masked": True},
            {"id": 1, "text": "x", "logprob": -1.5, "special": False},
        ]
    ]


def test_details_of_siblings() -> None:
    found = details(BEST, OTHER, prefix="> ")
    assert found["best_of_sequences"] == [
        {
            "generated_text": "> y",
            "finish_reason": "length",
            "generated_tokens": 1,
            "seed": 5,
            "prefill": [
                {"id": 9, "text": "p", "logprob": None},
                {"id": 8, "text": "q", "logprob": -3.0},
            ],
            "tokens": [{"id": 2, "text": "y", "logprob": -1.5, "special": False}],
            "top_tokens": [
                [
                    {"id": 2, "text": "y", "logprob": -1.5, "special": False},
                    {"id": 0, "text": "", "logprob": -2.0, "special": True},
                ]
            ],
        }
    ]
    assert "top_tokens" not in found


def test_forced_is_said_only_where_it_is_true() -> None:
    tokens = [Token(1, "{", -0.5, forced=True), Token(2, "}", -0.5)]
    first, second = details(replace(BEST, tokens=tokens))["tokens"]
    assert first["forced"] is True
    assert "forced" not in second


def test_headers() -> None:
    assert response_headers(response(BEST), "1-cpu") == {
        "x-compute-type": "1-cpu",
        "x-compute-characters": "15",
        "x-compute-time": "2.000000",
        "x-total-time": "2000",
        "x-validation-time": "500",
        "x-queue-time": "250",
        "x-inference-time": "1250",
        "x-time-per-token": "625",
        "x-prompt-tokens": "2",
        "x-generated-tokens": "2",
    }
    whole = response(BEST)
    assert stream_headers(whole.request, whole.timings, "t") == {
        "x-compute-type": "t",
        "x-compute-characters": "15",
        "x-validation-time": "500",
        "x-queue-time": "250",
        "x-prompt-tokens": "2",
    }
