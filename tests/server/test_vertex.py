from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.server.running import running, script
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


def test_routes_that_vertex_chooses(tokenizer_file: Path) -> None:
    health = "/v1/endpoints/1/deployedModels/2"
    predict = f"{health}:predict"
    given = {"predict_route": predict, "health_route": health, "api_key": "k"}
    with running(tokenizer_file, **given) as server, httpx.Client(base_url=server.url) as client:
        assert client.get(health).status_code == client.head(health).status_code == 200
        body = {"instances": [instance("aa", max_new_tokens=3)]}
        assert client.post(predict, json=body).status_code == 401
        assert client.post(health, json=body).status_code in (401, 405)
        client.headers["authorization"] = "Bearer k"
        assert client.post(predict, json=body).json() == {"predictions": ["(65)(65)(65)"]}
        wrongs: list[dict[str, Any]] = [{"instances": []}, {"instances": 1}, {}]
        for wrong in wrongs:
            here, there = client.post(predict, json=wrong), client.post("/vertex", json=wrong)
            assert (here.status_code, here.text) == (there.status_code, there.text)
        metrics = client.get("/metrics").text
        assert f'"{predict}"' in metrics


@pytest.mark.parametrize("path", ["/generate", "/v1/chat/completions", "/vertex", "/"])
def test_a_route_that_is_there_keeps_its_bodies(tokenizer_file: Path, path: str) -> None:
    given = {"predict_route": path, "health_route": "/ping"}
    with running(tokenizer_file, **given) as server, httpx.Client(base_url=server.url) as client:
        assert client.get("/ping").status_code == 200
        body = {"instances": [instance("aa", max_new_tokens=3)]}
        response = client.post(path, json=body)
        assert (response.status_code == 200) == (path == "/vertex")
        if path.startswith("/v1/"):
            assert isinstance(response.json()["error"], dict), "OpenAI's form"
