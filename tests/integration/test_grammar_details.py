"""What the details say of a grammar's captures and temperatures, over the real model."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.integration.serving import Json, Server, body, client, events

PROMPT = "A riddle: what has keys but opens no lock?\n"
RIDDLE = (
    'start: "Guess: " guess "\\nAnswer: " answer\n'
    "guess[capture, temperature=1.2]: /[a-z ]{3,16}/\n"
    "answer[capture, temperature=0]: /[a-z]{3,10}/"
)


def grammar(value: str) -> Json:
    """The parameter, for a grammar's text."""
    return {"type": "grammar", "value": value}


def answer(server: Server, **parameters: Any) -> Json:  # noqa: ANN401 - JSON
    return server.generate(
        PROMPT, **{"grammar": grammar(RIDDLE), "details": True, "max_new_tokens": 40, **parameters}
    )


def said(tokens: list[Json]) -> list[tuple[int, float | None]]:
    """The tokens, and at which temperature they were drawn."""
    return [(token["id"], token.get("temperature")) for token in tokens]


def test_captures_temperatures_and_the_seed(server: Server) -> None:
    response = answer(server)
    details = response["details"]
    captures, text = details["captures"], response["generated_text"]
    assert text == f"Guess: {captures['guess']}\nAnswer: {captures['answer']}"
    assert details["finish_reason"] == "eos_token"
    temperatures = [t["temperature"] for t in details["tokens"] if "temperature" in t]
    assert temperatures == sorted(temperatures, reverse=True)
    assert set(temperatures) == {1.2, 0.0}
    assert all("temperature" not in token for token in details["tokens"] if token.get("forced"))
    again = answer(server, seed=details["seed"])["details"]
    assert again["captures"] == captures
    assert said(again["tokens"]) == said(details["tokens"]), "by the seed that was chosen for it"


def test_without_temperatures_nothing_is_drawn(server: Server) -> None:
    details = answer(server, grammar=grammar("start: x\nx[capture]: /[a-z]{3}/"))["details"]
    assert details["seed"] is None
    assert details["captures"] == {"x": "".join(token["text"] for token in details["tokens"])}
    assert all("temperature" not in token for token in details["tokens"])


def test_siblings_differ(server: Server) -> None:
    details = answer(server, best_of=2)["details"]
    (sibling,) = details["best_of_sequences"]
    assert sibling["seed"] != details["seed"]
    assert sibling["captures"].keys() == details["captures"].keys() == {"guess", "answer"}


@pytest.mark.anyio
async def test_the_stream_says_the_same(server: Server) -> None:
    whole = answer(server, seed=11)
    parameters = {"grammar": grammar(RIDDLE), "details": True, "max_new_tokens": 40, "seed": 11}
    async with client(server) as http:
        streamed = [event async for event in events(http, PROMPT, **parameters)]
    assert said([event["token"] for event in streamed]) == said(whole["details"]["tokens"])
    last = streamed[-1]
    assert last["details"]["captures"] == whole["details"]["captures"]
    assert last["details"]["seed"] == whole["details"]["seed"] == 11


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("start: a\na[temperature=-1]: /x|y/", "`temperature` must be 0 or a positive number"),
        ("start: j\nj: %lark {\nstart: a\na[temperature=1]: /x+/\n}", "`temperature` is not"),
    ],
)
def test_what_cannot_be_honoured_is_refused(server: Server, value: str, reason: str) -> None:
    response = httpx.post(
        f"{server.url}/generate", json=body(PROMPT, {"grammar": grammar(value)}), timeout=60
    )
    assert response.status_code == 422
    assert reason in response.json()["error"]


def test_no_schema_is_lenient_of_its_own(server: Server) -> None:
    schema = {"type": "array", "uniqueItems": True, "x-guidance": {"lenient": True}}
    for asked, status in ((False, 422), (True, 200)):
        parameters = {
            "grammar": {"type": "json", "value": schema, "lenient": asked},
            "max_new_tokens": 4,
        }
        response = httpx.post(f"{server.url}/generate", json=body(PROMPT, parameters), timeout=60)
        assert response.status_code == status, response.text
        assert "uniqueItems" in response.text
