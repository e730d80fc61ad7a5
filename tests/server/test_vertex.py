from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.server.running import script
from tokenloom_engine.messages import SequenceOutput


def post(client: httpx.Client, *instances: dict[str, Any]) -> httpx.Response:
    return client.post("/vertex", json={"instances": instances})


def instance(inputs: str, **parameters: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
    return {"inputs": inputs, "parameters": parameters}


def test_predictions_come_in_order(client: httpx.Client) -> None:
    response = post(
        client,
        instance("aa", max_new_tokens=3),
        instance("h", max_new_tokens=1, return_full_text=True),
        instance("é", max_new_tokens=2, do_sample=True, seed=1),
    )
    assert response.status_code == 200
    assert response.json() == {"predictions": ["(65)(65)(65)", "h(72)", "(128)(103)"]}
    headers = response.headers
    assert (headers["x-compute-type"], headers["x-compute-characters"]) == ("1-cpu", "4")
    assert (headers["x-prompt-tokens"], headers["x-generated-tokens"]) == ("5", "6")


@pytest.mark.parametrize(
    ("parameters", "reason"),
    [
        ({"best_of": 2, "do_sample": True}, "`best_of` is not allowed for this endpoint"),
        ({"top_n_tokens": 1}, "`top_n_tokens` is not allowed for this endpoint"),
        ({"details": True}, "`details` is not allowed for this endpoint"),
        ({"logprobs_mode": "processed"}, "`logprobs_mode` is not allowed for this endpoint"),
        ({"decoder_input_details": True}, "`decoder_input_details` is not allowed"),
        ({"temperature": -1}, "`temperature` must be strictly positive"),
    ],
)
def test_one_at_fault_is_enough(
    client: httpx.Client, parameters: dict[str, Any], reason: str
) -> None:
    response = post(client, instance("a", max_new_tokens=1), instance("a", **parameters))
    assert response.status_code == 422
    assert reason in response.json()["error"]
    assert response.json()["error_type"] == "validation"
    assert "x-compute-type" not in response.headers


@pytest.mark.parametrize("number", [0, 129, 10_000])
def test_none_and_too_many(client: httpx.Client, number: int) -> None:
    response = post(client, *[instance("a")] * number)
    assert response.status_code == 422
    assert response.json() == {
        "error": "Input validation error: `instances` must have > 0 and <= 128 items. "
        f"Given: {number}",
        "error_type": "validation",
    }


def test_one_that_fails_fails_all(client: httpx.Client) -> None:
    failing = instance("a", stop=[script(SequenceOutput(0, error="out of luck"))])
    response = post(client, instance("a", max_new_tokens=3), failing)
    assert response.status_code == 424
    assert "out of luck" in response.json()["error"]
