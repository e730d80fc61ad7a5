"""/v1/completions on the real server."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tests.integration.openai_api import (
    COMPLETIONS,
    Streamed,
    complete,
    fault,
    stream_chat,
    stream_completion,
)
from tests.integration.serving import Json, Server

PROMPT = "The capital of France is"


def only(text: str) -> Json:
    """The output is this text."""
    return {"guided_choice": [text]}


def test_a_completion(server: Server) -> None:
    answer = complete(server, PROMPT, max_tokens=4)
    assert set(answer) == {
        "id", "object", "created", "model", "system_fingerprint", "choices", "usage"
    }  # fmt: skip
    assert answer["id"].startswith("cmpl-")
    assert answer["object"] == "text_completion"
    assert answer["model"] == server_model(server)
    assert answer["system_fingerprint"]
    (choice,) = answer["choices"]
    assert choice["text"]
    assert choice["index"] == 0
    assert choice["finish_reason"] == "length"
    assert choice["logprobs"] is None
    assert answer["usage"]["prompt_tokens"] == 5
    assert answer["usage"]["completion_tokens"] == 4
    assert answer["usage"]["total_tokens"] == 9
    again = complete(server, PROMPT, max_tokens=4)
    assert again["choices"] == answer["choices"]
    assert again["id"] != answer["id"]


def test_sixteen_tokens_are_the_default(server: Server) -> None:
    assert complete(server, ignore_eos=True)["usage"]["completion_tokens"] == 16


def test_a_stream_has_the_same(server: Server) -> None:
    whole = complete(server, PROMPT, max_tokens=8, logprobs=2)
    streamed = stream_completion(server, PROMPT, max_tokens=8, logprobs=2)
    (choice,) = whole["choices"]
    assert streamed.text() == choice["text"]
    assert streamed.finish_reasons() == ["length"]
    for name, values in choice["logprobs"].items():
        joined = [value for part in streamed.choices for value in part["logprobs"][name]]
        assert joined == pytest.approx(values) if name == "token_logprobs" else True
        assert len(joined) == len(values)
    assert {chunk["object"] for chunk in streamed.chunks} == {"text_completion"}
    assert len({chunk["id"] for chunk in streamed.chunks}) == 1
    assert all("usage" not in chunk for chunk in streamed.chunks)


@pytest.mark.parametrize(
    ("options", "last", "others"),
    [
        (None, False, {"absent"}),
        ({"include_usage": False}, False, {"absent"}),
        ({"include_usage": True}, True, {None}),
        ({"include_usage": True, "continuous_usage_stats": True}, True, {1, 2, 3}),
        ({"continuous_usage_stats": True}, False, {1, 2, 3}),
    ],
)
def test_usage_in_streams(
    server: Server, options: Json | None, last: bool, others: set[Any]
) -> None:
    streamed = stream_completion(
        server, PROMPT, max_tokens=3, ignore_eos=True, stream_options=options
    )
    chunks = streamed.chunks
    if last:
        *chunks, end = chunks
        assert end["choices"] == []
        assert end["usage"]["total_tokens"] == 8
    found = {
        usage["completion_tokens"] if isinstance(usage, dict) else usage
        for usage in (chunk.get("usage", "absent") for chunk in chunks)
    }
    assert found == others


def test_prompts_and_choices_come_in_order(server: Server) -> None:
    prompts = ["One, two, three,", "Monday, Tuesday,"]
    alone = [complete(server, prompt, max_tokens=4)["choices"][0]["text"] for prompt in prompts]
    answer = complete(server, prompts, max_tokens=4, n=2)
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    texts = [choice["text"] for choice in answer["choices"]]
    assert texts == [alone[0], alone[0], alone[1], alone[1]]
    singles = [complete(server, prompt, max_tokens=4)["usage"] for prompt in prompts]
    assert answer["usage"]["prompt_tokens"] == sum(usage["prompt_tokens"] for usage in singles)
    assert answer["usage"]["completion_tokens"] == 2 * 2 * 4
    streamed = stream_completion(server, prompts, max_tokens=4, n=2)
    assert [streamed.text(index) for index in range(4)] == texts
    assert all(streamed.finish_reasons(index) == ["length"] for index in range(4))


def test_token_ids_are_prompts(server: Server) -> None:
    given = complete(server, PROMPT, max_tokens=4, return_token_ids=True)
    (choice,) = given["choices"]
    ids = choice["prompt_token_ids"]
    assert len(ids) == 5
    assert len(choice["token_ids"]) == 4
    same = complete(server, ids, max_tokens=4, return_token_ids=True)
    assert same["choices"] == given["choices"]
    two = complete(server, [ids, ids[:2]], max_tokens=4)
    assert two["choices"][0]["text"] == choice["text"]
    assert two["usage"]["prompt_tokens"] == 7
    assert complete(server, ids, max_tokens=1, echo=True)["choices"][0]["text"].startswith(PROMPT)
    parts = stream_completion(server, PROMPT, max_tokens=4, return_token_ids=True).choices
    assert [id for part in parts for id in part["token_ids"]] == choice["token_ids"]
    assert [part.get("prompt_token_ids") for part in parts] == [ids, *[None] * (len(parts) - 1)]


def test_seeds(server: Server) -> None:
    def texts(**body: Any) -> list[str]:  # noqa: ANN401
        answer = complete(server, PROMPT, max_tokens=12, temperature=1, **body)
        return [choice["text"] for choice in answer["choices"]]

    three = texts(n=3, seed=7)
    assert len(set(three)) == 3
    assert texts(n=3, seed=7) == three
    assert texts(seed=8) == [three[1]], "choice i has seed + i"
    assert texts(seed=-5) == texts(seed=2**64 - 5)
    assert len({*texts(n=2), *texts(n=2)}) > 1, "without a seed, there is a new one each time"


def test_the_default_is_to_draw(server: Server) -> None:
    drawn = {
        complete(server, PROMPT, max_tokens=12, temperature=temperature)["choices"][0]["text"]
        for temperature in (None, 1)
        for _ in range(2)
    }
    assert len(drawn) > 1
    greedy = complete(server, PROMPT, max_tokens=12)["choices"][0]["text"]
    for narrow in ({"top_k": 1}, {"top_p": 0}, {"min_p": 1}, {"temperature": 1e-9}):
        body = {"temperature": 2, "max_tokens": 12, **narrow}
        assert complete(server, PROMPT, **body)["choices"][0]["text"] == greedy
    off = {"top_k": -1, "top_p": 1, "min_p": 0, "repetition_penalty": 1, "presence_penalty": 0}
    assert complete(server, PROMPT, max_tokens=12, **off)["choices"][0]["text"] == greedy


def test_best_of_returns_the_most_probable(server: Server) -> None:
    body: Json = {"max_tokens": 6, "temperature": 1.2, "seed": 3, "logprobs": 0}
    four = complete(server, PROMPT, n=4, **body)
    best = complete(server, PROMPT, n=2, best_of=4, **body)

    def mean(choice: Json) -> float:
        logprobs: list[float] = choice["logprobs"]["token_logprobs"]
        return sum(logprobs) / len(logprobs)

    expected = sorted(four["choices"], key=mean, reverse=True)[:2]
    assert [c["text"] for c in best["choices"]] == [c["text"] for c in expected]
    assert [c["index"] for c in best["choices"]] == [0, 1]
    assert best["usage"]["completion_tokens"] == four["usage"]["completion_tokens"]
    assert "`best_of` must be >= `n`" in complain(server, n=3, best_of=2)
    assert "`best_of` must be `n`" in complain(server, best_of=2, stream=True)


@pytest.mark.parametrize("streams", [False, True])
def test_echo_and_log_probabilities(server: Server, streams: bool) -> None:
    text, logprobs = told(server, streams, "Salt and", max_tokens=4, echo=True, logprobs=1)
    assert text.startswith("Salt and")
    assert logprobs["tokens"][:2] == ["Salt", " and"]
    assert logprobs["token_logprobs"][0] is None
    assert all(value <= 0 for value in logprobs["token_logprobs"][1:])
    for token, offset in zip(logprobs["tokens"], logprobs["text_offset"], strict=True):
        assert text[offset:].startswith(token)
    assert logprobs["text_offset"][0] == 0
    assert len(logprobs["tokens"]) == 6
    plain = complete(server, "Salt and", max_tokens=4, logprobs=1)["choices"][0]["logprobs"]
    assert logprobs["token_logprobs"][2:] == pytest.approx(plain["token_logprobs"], abs=1e-3)


@pytest.mark.parametrize(
    "text", ["日本語 a：b", "go 👍🏽 there", "e\u0301 ü\u00a0½", "<|im_end|>é🙂x"]
)
def test_places_in_an_echo_whose_characters_have_several_tokens(server: Server, text: str) -> None:
    logprobs = told(server, False, text, max_tokens=0, echo=True, logprobs=0)[1]
    assert any(token.startswith("bytes:") for token in logprobs["tokens"])
    data = b""
    for token, offset in zip(logprobs["tokens"], logprobs["text_offset"], strict=True):
        assert offset == len(data.decode(errors="ignore"))
        escaped = token.removeprefix("bytes:").replace("\\x", "")
        data += bytes.fromhex(escaped) if token.startswith("bytes:") else token.encode()
    assert data.decode() == text


@pytest.mark.parametrize("streams", [False, True])
def test_echo_alone(server: Server, streams: bool) -> None:
    text, logprobs = told(server, streams, "Salt and", max_tokens=0, echo=True, logprobs=0)
    assert text == "Salt and"
    assert len(logprobs["tokens"]) == 2
    answer = complete(server, "Salt and", max_tokens=0, echo=True)
    assert answer["usage"]["completion_tokens"] == 0
    assert answer["choices"][0]["finish_reason"] == "length"
    assert "`max_tokens`" in complain(server, max_tokens=0)


def test_log_probabilities_are_those_of_the_model(server: Server) -> None:
    (choice,) = complete(server, PROMPT, max_tokens=6, logprobs=5)["choices"]
    logprobs = choice["logprobs"]
    assert "".join(logprobs["tokens"]) == choice["text"]
    assert any(value < -1e-3 for value in logprobs["token_logprobs"])
    for token, value, tops in zip(
        logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True
    ):
        assert tops[token] == value == max(tops.values())
        assert len(tops) == 5
        assert sum(math.exp(top) for top in tops.values()) <= 1 + 1e-5
    forced = complete(server, PROMPT, logprobs=1, **only("Oslo, I think"))["choices"][0]
    assert forced["text"] == "Oslo, I think"
    assert all(forced["logprobs"]["forced"])
    assert all(math.isfinite(value) and value < 0 for value in forced["logprobs"]["token_logprobs"])
    answer = complete(server, PROMPT, **only("Oslo, I think"))
    details = answer["usage"]["completion_tokens_details"]
    assert details["forced_tokens"] == answer["usage"]["completion_tokens"] > 1


@pytest.mark.parametrize("streams", [False, True])
def test_a_stop_string_is_cut_and_never_sent(server: Server, streams: bool) -> None:
    cases: list[tuple[str, list[str], str]] = [
        ("one two three four", ["two thr"], "one "),
        ("is it blue?\nyes", ["\n"], "is it blue?"),
        (" Carla! Hello", ["\n", "Carla:"], " Carla! Hello"),
        ("aaab aab", ["aab"], "a"),
        ("one two three", ["three four", "two"], "one "),
        ("one two three", ["two three", "three"], "one "),
        ("tell me two", ["two three"], "tell me two"),
    ]
    for text, stop, left in cases:
        for forced_tokens in (True, False):
            body: Json = {"stop": stop, "forced_tokens": forced_tokens, **only(text)}
            if streams:
                streamed = stream_completion(server, PROMPT, **body)
                assert streamed.text() == left
                assert streamed.finish_reasons() == ["stop"]
                assert all(left.startswith(sofar) for sofar in growing(streamed))
                reason = streamed.choices[-1]["stop_reason"]
            else:
                (choice,) = complete(server, PROMPT, **body)["choices"]
                assert choice["text"] == left
                assert choice["finish_reason"] == "stop"
                reason = choice["stop_reason"]
            assert reason == next((s for s in stop if left + s in text), None)
    kept = complete(
        server, PROMPT, stop="two", include_stop_str_in_output=True, **only("one two three")
    )
    assert kept["choices"][0]["text"] == "one two"


def test_log_probabilities_end_where_the_text_does(server: Server) -> None:
    body: Json = {"stop": "two thr", "logprobs": 1, **only("one two three four")}
    (choice,) = complete(server, PROMPT, **body)["choices"]
    assert choice["text"] == "one "
    assert choice["logprobs"]["tokens"] == ["one", " two"], "the second one's space is there"
    joined = [
        token
        for part in stream_completion(server, PROMPT, **body).choices
        for token in part["logprobs"]["tokens"]
    ]
    assert joined == choice["logprobs"]["tokens"]


def test_tokens_that_end_the_text(server: Server) -> None:
    whole = complete(server, PROMPT, max_tokens=8, return_token_ids=True)["choices"][0]
    ids = whole["token_ids"]
    end = ids[4]
    number = ids.index(end)
    stopped = complete(server, PROMPT, max_tokens=8, stop_token_ids=[end], return_token_ids=True)
    (choice,) = stopped["choices"]
    assert choice["token_ids"] == ids[: number + 1]
    assert choice["finish_reason"] == "stop"
    assert choice["stop_reason"] == end
    assert whole["text"].startswith(choice["text"])
    body: Json = {"stop_token_ids": [end], "include_stop_str_in_output": True, "max_tokens": 8}
    kept = complete(server, PROMPT, **body)["choices"][0]["text"]
    assert kept.startswith(choice["text"])
    assert len(kept) > len(choice["text"])
    streamed = stream_completion(server, PROMPT, stop_token_ids=[end], max_tokens=8)
    assert streamed.text() == choice["text"]
    later = complete(server, PROMPT, max_tokens=8, stop_token_ids=[end], min_tokens=8)
    assert later["usage"]["completion_tokens"] == 8


def test_special_tokens_are_shown_if_wanted(server: Server) -> None:
    body: Json = {"logit_bias": {"0": 100}, "max_tokens": 3, "return_token_ids": True}
    (hidden,) = complete(server, PROMPT, ignore_eos=True, **body)["choices"]
    assert hidden["token_ids"] == [0, 0, 0]
    assert hidden["text"] == ""
    (shown,) = complete(server, PROMPT, ignore_eos=True, skip_special_tokens=False, **body)[
        "choices"
    ]
    assert shown["text"] == "<|endoftext|>" * 3


def test_penalties_count_the_output_alone(server: Server) -> None:
    prompt = "red red red red"

    def first(**body: Any) -> float:  # noqa: ANN401
        more: Json = {"logprobs_mode": "processed", "logprobs": 20, "max_tokens": 1, **body}
        (choice,) = complete(server, prompt, **more)["choices"]
        value: float = choice["logprobs"]["top_logprobs"][0].get(" red", -99.0)
        return value

    plain = first()
    assert first(presence_penalty=2, frequency_penalty=2) == pytest.approx(plain, abs=1e-4)
    assert first(repetition_penalty=2) < plain - 0.5
    body: Json = {"max_tokens": 16, "prompt": "ha ha ha ha ha ha ha ha ha ha"}
    loop = complete(server, **body)["choices"][0]["text"]
    assert loop == " ha" * 16
    for penalty in ({"presence_penalty": 2.0}, {"frequency_penalty": 2.0}):
        assert complete(server, **body, **penalty)["choices"][0]["text"] != loop


def test_bytes_of_characters_are_never_torn(server: Server) -> None:
    text = "你好，世界🙂👍🏽 क्षि"
    whole = complete(server, PROMPT, max_tokens=64, logprobs=1, **only(text))["choices"][0]
    assert whole["text"] == text
    streamed = stream_completion(server, PROMPT, max_tokens=64, **only(text))
    assert streamed.text() == text
    assert stream_chat(server, max_tokens=64, **only(text)).text() == text
    number = len(whole["logprobs"]["tokens"])
    assert any(token.startswith("bytes:\\x") for token in whole["logprobs"]["tokens"])
    for most in range(1, number):
        cut = stream_completion(server, PROMPT, max_tokens=most, **only(text))
        assert "\ufffd" not in cut.text()
        assert text.startswith(cut.text())
        assert cut.finish_reasons() == ["length"]


def test_token_healing(server: Server) -> None:
    body: Json = {"max_tokens": 2, "prompt": "The quick brown fox jumps over the la"}
    assert complete(server, **body)["choices"][0]["text"] == "wn."
    assert complete(server, token_healing=True, **body)["choices"][0]["text"] == "zy dog"


def test_the_cache_is_told(server: Server) -> None:
    prompt = "A sentence that is long enough to fill a block of the cache. " * 4
    complete(server, prompt, max_tokens=1)
    usage = complete(server, prompt, max_tokens=1)["usage"]
    assert 0 < usage["prompt_tokens_details"]["cached_tokens"] < usage["prompt_tokens"]


def told(server: Server, streams: bool, prompt: str, **body: Any) -> tuple[str, Json]:  # noqa: ANN401
    """The text of a completion and its log-probabilities, streamed or not."""
    if not streams:
        (choice,) = complete(server, prompt, **body)["choices"]
        return choice["text"], choice["logprobs"]
    streamed = stream_completion(server, prompt, **body)
    joined: Json = {}
    for choice in streamed.choices:
        for name, values in choice["logprobs"].items():
            joined[name] = joined.get(name, []) + values
    return streamed.text(), joined


def growing(streamed: Streamed) -> list[str]:
    """The text after each chunk."""
    texts = [""]
    for choice in streamed.choices:
        texts.append(texts[-1] + choice["text"])
    return texts


def complain(server: Server, **body: Any) -> str:  # noqa: ANN401
    """What is said of a wrong request."""
    message: str = fault(server, COMPLETIONS, {"prompt": PROMPT, **body})["message"]
    return message


def server_model(server: Server) -> str:
    """The model's name, as the server tells it."""
    import httpx

    (model,) = httpx.get(f"{server.url}/v1/models", timeout=10).json()["data"]
    name: str = model["id"]
    return name
