"""Tokens that a grammar leaves no choice about: computed together, they are what they are alone."""

from __future__ import annotations

import json
import math
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.integration.serving import Json, Server, body, token_ids

PROMPT = "A person:\n"
FLAGS = {
    "type": "object",
    "properties": {"is_adult": {"type": "boolean"}, "is_tall": {"type": "boolean"}},
    "required": ["is_adult", "is_tall"],
    "additionalProperties": False,
}
SENTENCE = "one two three four five six seven eight"
GRAMMARS: dict[str, Json] = {
    "json_schema": {
        "type": "json_schema",
        "value": {
            "name": "person",
            "schema": {
                "type": "object",
                "properties": {
                    "first_name": {"type": "string", "maxLength": 6},
                    "is_adult": {"type": "boolean"},
                    "favourite_colour": {"enum": ["red", "green"]},
                },
                "required": ["first_name", "is_adult", "favourite_colour"],
                "additionalProperties": False,
            },
        },
    },
    "json_object": {"type": "json_object"},
    "regex": {"type": "regex", "value": r"Name: [A-Z][a-z]{1,6}, born in (19|20)[0-9]{2}\."},
    "choice": {
        "type": "choice",
        "value": ["a man of the people", "a man of the world", "a woman of the world"],
    },
    "lark": {
        "type": "grammar",
        "value": 'start: "The person is " AGE " years old" (" and tall")?\nAGE: /[1-9][0-9]/',
    },
    "gbnf": {
        "type": "grammar",
        "value": 'root ::= "(first " name ") (second " name ")"\nname ::= [A-Z] [a-z] [a-z]',
    },
}


def sentence(kind: str) -> Json:
    """A grammar of one sentence, so that all of its tokens are forced."""
    if kind == "regex":
        return {"type": "regex", "value": SENTENCE}
    if kind == "lark":
        return {"type": "grammar", "value": f'start: "{SENTENCE}"'}
    return {"type": "choice", "value": [SENTENCE]}


def run_all(server: Server, requests: list[Json], prompt: str = PROMPT) -> list[Json]:
    """POST /generate for all these parameters at once; details are in the responses."""
    with ThreadPoolExecutor(32) as threads:
        return list(
            threads.map(
                lambda given: server.generate(prompt, **{"details": True, **given}), requests
            )
        )


def seconds_until_idle(server: Server) -> float:
    """How long sequences are still in the batch."""
    start = time.monotonic()
    while server.metric("tgi_batch_current_size") > 0:
        assert time.monotonic() - start < 20, "a sequence goes on without its client"
        time.sleep(0.01)
    return time.monotonic() - start


@pytest.mark.parametrize("kind", GRAMMARS)
def test_forced_or_not_the_tokens_are_the_same(server: Server, kind: str) -> None:
    greedy: Json = {"grammar": GRAMMARS[kind], "max_new_tokens": 24}
    wild: Json = {**greedy, "temperature": 1.5, "seed": 7}
    requests = [
        {**given, "forced_tokens": forced} for given in (greedy, wild) for forced in (True, False)
    ]
    responses = run_all(server, requests)
    for on, off in (responses[:2], responses[2:]):
        assert on["generated_text"] == off["generated_text"]
        assert token_ids(on) == token_ids(off)
        for one, other in zip(on["details"]["tokens"], off["details"]["tokens"], strict=True):
            assert one["logprob"] == pytest.approx(other["logprob"], abs=1e-3)
        flags = [token.get("forced", False) for token in on["details"]["tokens"]]
        assert on["details"]["forced_tokens"] == sum(flags)
        if kind != "json_object":  # of any shape: hardly anything must follow
            assert 1 <= sum(flags) < len(flags)
        assert off["details"]["forced_tokens"] == 0
        assert not any(token.get("forced") for token in off["details"]["tokens"])


@pytest.mark.parametrize("grammar", [GRAMMARS["lark"], {"type": "json", "value": FLAGS}])
def test_their_log_probabilities_are_the_models_own(server: Server, grammar: Json) -> None:
    """They are those that the same text has in a prompt."""
    response = server.generate(PROMPT, grammar=grammar, max_new_tokens=24, details=True)
    tokens = response["details"]["tokens"]
    text = PROMPT + response["generated_text"]
    read = server.generate(text, max_new_tokens=1, decoder_input_details=True)
    prefill = read["details"]["prefill"][-len(tokens) :]
    assert [token["id"] for token in prefill] == [token["id"] for token in tokens]
    assert any(token.get("forced") for token in tokens)
    for token, same in zip(tokens, prefill, strict=True):
        assert token["logprob"] == pytest.approx(same["logprob"], abs=1e-3)


@pytest.mark.parametrize("kind", ["regex", "lark", "choice"])
def test_a_sentence_that_is_given_is_forced_throughout(server: Server, kind: str) -> None:
    details = server.generate(PROMPT, grammar=sentence(kind), details=True)["details"]
    assert details["finish_reason"] == "eos_token"
    assert all(token["forced"] for token in details["tokens"])
    assert details["forced_tokens"] == details["generated_tokens"] == len(details["tokens"])
    assert all(token["logprob"] < 0 for token in details["tokens"])


@pytest.mark.parametrize("kind", ["regex", "lark", "choice"])
def test_the_token_limit_holds_among_them(server: Server, kind: str) -> None:
    whole = token_ids(server.generate(PROMPT, grammar=sentence(kind), details=True))
    numbers = range(1, len(whole))
    requests = [{"grammar": sentence(kind), "max_new_tokens": number} for number in numbers]
    for number, response in zip(numbers, run_all(server, requests), strict=True):
        details = response["details"]
        assert (details["finish_reason"], details["generated_tokens"]) == ("length", number)
        assert token_ids(response) == whole[:number]
        assert SENTENCE.startswith(response["generated_text"])


@pytest.mark.parametrize("kind", ["regex", "lark", "choice"])
@pytest.mark.parametrize("forced_tokens", [True, False])
def test_a_stop_string_holds_among_them(server: Server, kind: str, forced_tokens: bool) -> None:
    stops = ["three", "o thr", "e", SENTENCE]
    requests = [
        {"grammar": sentence(kind), "stop": [stop], "forced_tokens": forced_tokens}
        for stop in stops
    ]
    for stop, response in zip(stops, run_all(server, requests), strict=True):
        end = SENTENCE.index(stop) + len(stop)
        assert response["generated_text"] == SENTENCE[:end]
        assert response["details"]["finish_reason"] == "stop_sequence"
        texts = [token["text"] for token in response["details"]["tokens"]]
        assert "".join(texts) == SENTENCE[:end]


@pytest.mark.parametrize("path", ["/generate", "/generate_stream"])
def test_a_client_may_leave_among_them(server: Server, path: str) -> None:
    grammar = {"type": "regex", "value": "(one two three four five six ){300}"}
    before = server.metric("tgi_batch_current_size")
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(
            server.url + path,
            json=body(PROMPT, {"grammar": grammar, "max_new_tokens": 2000, "details": True}),
            timeout=httpx.Timeout(10, read=0.5),
        )
    assert before == 0
    assert seconds_until_idle(server) < 5
    assert server.generate("a", max_new_tokens=1)


def test_processed_log_probabilities_are_those_of_the_draw(server: Server) -> None:
    grammar = {"type": "regex", "value": "[abc] and so on"}
    details = server.generate(
        PROMPT,
        grammar=grammar,
        details=True,
        logprobs_mode="processed",
        top_n_tokens=5,
        temperature=0.5,
        seed=3,
    )["details"]
    (drawn, *forced), (top, *forced_top) = details["tokens"], details["top_tokens"]
    assert sorted(token["text"] for token in top) == ["a", "b", "c"]
    assert math.fsum(math.exp(token["logprob"]) for token in top) == pytest.approx(1, abs=1e-4)
    assert drawn["logprob"] in [token["logprob"] for token in top]
    assert forced
    assert all(token["forced"] and token["logprob"] == 0 for token in forced)
    for token, (only,) in zip(forced, forced_top, strict=True):
        assert (only["id"], only["logprob"]) == (token["id"], 0)


def test_raw_log_probabilities_are_the_models_own(server: Server) -> None:
    grammar = {"type": "regex", "value": "[abc] and so on"}
    asked: Json = {"max_new_tokens": 1, "top_n_tokens": 5}
    free, bound, raw, bent = run_all(
        server,
        [
            asked,
            {**asked, "grammar": grammar},
            {**asked, "grammar": grammar, "logprobs_mode": "raw"},
            {**asked, "grammar": grammar, "temperature": 0.5, "logit_bias": {"81": 9.0}},
        ],
    )
    (own,) = free["details"]["top_tokens"]
    for response in (bound, raw, bent):
        (top,) = response["details"]["top_tokens"]
        assert [token["id"] for token in top] == [token["id"] for token in own]
        for token, same in zip(top, own, strict=True):
            assert token["logprob"] == pytest.approx(same["logprob"], abs=1e-3)
        (chosen,) = response["details"]["tokens"]
        assert chosen["text"] in ("a", "b", "c")
        assert chosen["logprob"] < own[-1]["logprob"] + 1e-3


def test_top_tokens_say_which_of_them_the_grammar_masked(server: Server) -> None:
    prompt = "a b a b a b a b a"
    details = server.generate(
        prompt,
        grammar={"type": "regex", "value": "( a| b| d){2} and so on"},
        details=True,
        top_n_tokens=5,
    )["details"]
    allowed = {" a", " b", " d", " "}
    seen = set()
    for token, top in zip(details["tokens"], details["top_tokens"], strict=True):
        for other in top:
            is_masked = other.get("masked", False)
            seen.add(is_masked)
            if token.get("forced"):
                assert is_masked == (other["id"] != token["id"])
            else:
                assert is_masked == (other["text"] not in allowed)
    assert seen == {True, False}
    for free in server.generate(prompt, max_new_tokens=2, details=True, top_n_tokens=5)["details"][
        "top_tokens"
    ]:
        assert not any("masked" in token for token in free)


def test_details_count_them_only_where_there_is_a_grammar(server: Server) -> None:
    grammar = GRAMMARS["json_schema"]
    free, bound = run_all(server, [{"max_new_tokens": 4}, {"grammar": grammar}])
    assert "forced_tokens" not in free["details"]
    assert bound["details"]["forced_tokens"] > 5
    streamed = httpx.post(
        f"{server.url}/generate_stream",
        json=body(PROMPT, {"grammar": grammar, "details": True}),
        timeout=60,
    )
    events = [json.loads(frame[6:]) for frame in streamed.text.split("\n\n") if frame]
    number = events[-1]["details"]["forced_tokens"]
    assert number == bound["details"]["forced_tokens"]
    assert number == sum(event["token"].get("forced", False) for event in events)
