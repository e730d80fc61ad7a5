"""What goes wrong gets a status and a reason, streamed or not, and harms nobody else."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.integration.serving import Server, body

PATHS = ["/generate", "/generate_stream", "/"]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("parameters", "reason"),
    [
        ({"grammar": {"type": "regex", "value": "("}}, "grammar is not valid: "),
        ({"grammar": {"type": "json", "value": "{"}}, "grammar is not valid: "),
        ({"grammar": {"type": "json", "value": {"type": "nonsense"}}}, "grammar is not valid: "),
        (
            {"max_new_tokens": 100_000},
            "`inputs` tokens + `max_new_tokens` must be <= 8192. Given: 1 `inputs` tokens and "
            "100000 `max_new_tokens`",
        ),
        ({"max_new_tokens": 2_000_000_000}, "`inputs` tokens + `max_new_tokens` must be <= 8192"),
        ({"max_new_tokens": 0}, "`max_new_tokens` must be strictly positive"),
        ({"truncate": 100_000}, "`truncate` must be strictly positive and less than "),
        ({"temperature": -1}, "`temperature` must be strictly positive"),
        ({"top_p": 1.5}, "`top_p` must be > 0.0 and <= 1.0"),
        ({"top_n_tokens": 1000}, "`top_n_tokens` must be >= 0 and <= 5. Given: 1000"),
        ({"best_of": 100_000, "do_sample": True}, "`best_of`"),
        ({"stop": ["x"] * 10_000}, "`stop` supports up to 4 stop sequences. Given: 10000"),
        (
            {"adapter_id": "../../x"},
            "`adapter_id` must name a loaded adapter: none is. Given: ../../x",
        ),
    ],
)
def test_a_request_at_fault_is_a_422_also_when_streaming(
    server: Server, path: str, parameters: dict[str, Any], reason: str
) -> None:
    response = httpx.post(server.url + path, json=body("Hello", parameters), timeout=30)
    assert response.status_code == 422
    error = response.json()
    assert error["error_type"] == "validation"
    assert error["error"].startswith(f"Input validation error: {reason}")


@pytest.mark.parametrize("path", PATHS)
def test_a_prompt_that_is_too_long(server: Server, path: str) -> None:
    response = httpx.post(server.url + path, json=body("word " * 20_000, {}), timeout=30)
    assert response.status_code == 422
    assert "Given: 20001 `inputs` tokens" in response.json()["error"]


@pytest.mark.parametrize(
    "field",
    ["temperature", "top_p", "typical_p", "repetition_penalty", "frequency_penalty", "logit_bias"],
)
@pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity", "1e400", '"nan"'])
def test_numbers_that_are_none(server: Server, field: str, word: str) -> None:
    value = f'{{"5": {word}}}' if field == "logit_bias" else word
    for path in PATHS:
        response = httpx.post(
            server.url + path,
            content=f'{{"inputs": "a", "parameters": {{"{field}": {value}}}}}',
            headers={"content-type": "application/json"},
        )
        assert response.status_code in (400, 422)
        assert response.text.startswith("Failed to ")
        assert field in response.text or word in response.text
    assert server.generate("a", max_new_tokens=1)


def test_a_neighbour_at_fault_changes_nothing(server: Server) -> None:
    alone = server.generate("Once upon a time", max_new_tokens=16)
    url = f"{server.url}/generate_stream"
    with httpx.stream("POST", url, json=body("Once upon a time", {"max_new_tokens": 16})) as beside:
        for parameters in ({"grammar": {"type": "regex", "value": "("}}, {"top_k": 0}):
            assert httpx.post(url, json=body("a", parameters)).status_code == 422
        *_, last = (line for line in beside.iter_lines() if line)
    assert httpx.Response(200, content=last[6:]).json()["generated_text"] == alone["generated_text"]
