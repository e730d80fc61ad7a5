"""What users of such servers complained of. Each test says what is right, by its name."""

from __future__ import annotations

import re

import anyio
import httpx
import pytest

from tests.integration.serving import Json, Server, body, client, events, generate, token_ids

PROMPT = "The capital of France is"
CHAT = "<|im_start|>user\nSay hi.<|im_end|>\n<|im_start|>assistant\n"


def only(text: str) -> Json:
    """A grammar that leaves nothing but this text."""
    return {"type": "regex", "value": re.escape(text)}


def stream(server: Server, inputs: str, **parameters: object) -> list[Json]:
    """All events of POST /generate_stream."""
    with httpx.stream(
        "POST", f"{server.url}/generate_stream", json=body(inputs, parameters), timeout=60
    ) as response:
        assert response.status_code == 200
        lines = [line for line in response.iter_lines() if line]
    return [httpx.Response(200, content=line.removeprefix("data: ")).json() for line in lines]


def test_stop_string_inside_a_token(server: Server) -> None:
    given: Json = {"grammar": only(" international"), "details": True}
    assert len(server.generate(PROMPT, **given)["details"]["tokens"]) == 1
    for found in (
        server.generate(PROMPT, **given, stop=["tern"]),
        stream(server, PROMPT, **given, stop=["tern"])[-1],
    ):
        assert found["generated_text"] == " intern"
        assert found["details"]["finish_reason"] == "stop_sequence"
        assert found["details"]["generated_tokens"] == 1


def test_stop_string_that_begins_with_the_prompts_end_is_not_found_there(server: Server) -> None:
    response = server.generate("one two", grammar=only(" two three"), stop=["two two", "two"])
    assert response["generated_text"] == " two"


def test_text_without_a_limit_is_not_cut_short(server: Server) -> None:
    words = " ".join(f"word {number}" for number in range(120))
    details = server.generate(PROMPT, grammar=only(words), details=True)["details"]
    assert details["generated_tokens"] > 200
    assert details["finish_reason"] == "eos_token"


def test_top_p_of_one_is_accepted_and_changes_nothing(server: Server) -> None:
    drawn: Json = {"max_new_tokens": 8, "do_sample": True, "seed": 7}
    assert server.generate(PROMPT, **drawn, top_p=1.0) == server.generate(PROMPT, **drawn)


def test_logit_bias_is_a_map_of_token_ids(server: Server) -> None:
    tokens = httpx.post(f"{server.url}/tokenize", json={"inputs": " London"}).json()
    bias = {str(tokens[0]["id"]): 100.0}
    text = server.generate(PROMPT, max_new_tokens=2, logit_bias=bias)["generated_text"]
    assert text == " London London"


def test_end_of_sequence_can_be_put_off(server: Server) -> None:
    early = server.generate(CHAT, max_new_tokens=100, details=True)["details"]
    least = early["generated_tokens"] + 10
    late = server.generate(CHAT, max_new_tokens=100, min_new_tokens=least, details=True)["details"]
    assert late["generated_tokens"] >= least


def test_temperature_of_one_draws_by_the_seed(server: Server) -> None:
    drawn: Json = {"max_new_tokens": 12, "temperature": 1.0, "details": True}
    one, again, other = (server.generate(PROMPT, **drawn, seed=seed) for seed in (1, 1, 2))
    assert one["details"]["seed"] == 1
    assert token_ids(one) == token_ids(again) != token_ids(other)


def test_do_sample_of_false_does_not_outrank_a_temperature(server: Server) -> None:
    given: Json = {"max_new_tokens": 12, "temperature": 1.5, "seed": 3, "details": True}
    drawn = server.generate(PROMPT, **given, do_sample=False)
    assert drawn == server.generate(PROMPT, **given, do_sample=True)
    assert drawn["details"]["seed"] == 3
    greedy = server.generate(PROMPT, max_new_tokens=12, do_sample=False, details=True)
    assert greedy["details"]["seed"] is None


def test_text_that_ends_inside_a_character_keeps_the_rest(server: Server) -> None:
    text = "yes 𐍈𐍈"
    number = len(server.generate(PROMPT, grammar=only(text), details=True)["details"]["tokens"])
    for most in range(1, number):
        response = server.generate(
            PROMPT, grammar=only(text), max_new_tokens=most, details=True, forced_tokens=False
        )
        assert response["generated_text"]
        assert text.startswith(response["generated_text"])
        joined = "".join(token["text"] for token in response["details"]["tokens"])
        assert joined == response["generated_text"]


def test_end_token_is_marked_special_and_not_part_of_the_text(server: Server) -> None:
    *_, last = stream(server, CHAT, max_new_tokens=100)
    assert last["token"]["text"] == "<|im_end|>"
    assert last["token"]["special"]
    assert "<|im_end|>" not in last["generated_text"]


def test_logprobs_are_not_those_of_the_narrowed_distribution(server: Server) -> None:
    (plain,) = server.generate(PROMPT, max_new_tokens=1, details=True)["details"]["tokens"]
    narrow: Json = {"top_k": 1, "top_p": 0.1, "temperature": 0.2, "seed": 1}
    (drawn,) = server.generate(PROMPT, max_new_tokens=1, details=True, **narrow)["details"][
        "tokens"
    ]
    assert drawn["id"] == plain["id"]
    assert drawn["logprob"] == pytest.approx(plain["logprob"], abs=1e-3)
    assert drawn["logprob"] < -0.01


@pytest.mark.anyio
async def test_prompt_logprobs_are_right_in_a_crowd_and_with_a_cached_prefix(
    server: Server,
) -> None:
    prompts = [f"{number} stones lie in the garden. " * (number % 4 + 1) for number in range(8)]
    wanted: Json = {"max_new_tokens": 1, "decoder_input_details": True}
    async with client(server) as http:
        alone = [await generate(http, prompt, **wanted) for prompt in prompts]
        crowd: dict[int, Json] = {}

        async def ask(number: int) -> None:
            crowd[number] = await generate(http, prompts[number], **wanted)

        async with anyio.create_task_group() as tasks:
            for number in range(8):
                tasks.start_soon(ask, number)
    for number, response in enumerate(alone):
        one, other = response["details"]["prefill"], crowd[number]["details"]["prefill"]
        assert [token["id"] for token in one] == [token["id"] for token in other]
        assert one[0]["logprob"] is other[0]["logprob"] is None
        assert "".join(token["text"] for token in one) == prompts[number]
        for left, right in zip(one[1:], other[1:], strict=True):
            assert left["logprob"] == pytest.approx(right["logprob"], abs=1e-3)


@pytest.mark.anyio
async def test_a_long_prompt_says_the_same_each_time_and_in_company(server: Server) -> None:
    prompt = " ".join(f"In year {number} the harvest was good." for number in range(80))
    wanted: Json = {"max_new_tokens": 12}
    async with client(server) as http:
        alone, cached = [await generate(http, prompt, **wanted) for _ in range(2)]
        found: list[list[int]] = []

        async def ask(start: str) -> None:
            response = await generate(http, start + prompt, **wanted)
            if not start:
                found.append(token_ids(response))

        async with anyio.create_task_group() as tasks:
            for start in ("", "Once. ", "", "Twice. "):
                tasks.start_soon(ask, start)
    assert token_ids(cached) == token_ids(alone)
    assert found == [token_ids(alone)] * 2


def test_a_seed_says_the_same_on_every_route(server: Server) -> None:
    drawn: Json = {"max_new_tokens": 10, "temperature": 0.9, "seed": 42}
    text = server.generate(PROMPT, **drawn)["generated_text"]
    assert stream(server, PROMPT, **drawn)[-1]["generated_text"] == text
    for path in ("/", "/invocations"):
        (answer,) = httpx.post(server.url + path, json=body(PROMPT, drawn), timeout=60).json()
        assert answer["generated_text"] == PROMPT + text
    predicted = httpx.post(
        f"{server.url}/vertex", json={"instances": [body(PROMPT, drawn)]}, timeout=60
    )
    assert predicted.json() == {"predictions": [text]}
    completion: Json = {"prompt": PROMPT, "max_tokens": 10, "temperature": 0.9, "seed": 42}
    answer = httpx.post(f"{server.url}/v1/completions", json=completion, timeout=60).json()
    assert answer["choices"][0]["text"] == text


def test_repetition_penalty_counts_the_prompt_and_frequency_penalty_does_not(
    server: Server,
) -> None:
    def first(**penalties: float) -> tuple[str, float]:
        given: Json = {"max_new_tokens": 1, "details": True, "logprobs_mode": "processed"}
        details = server.generate(" ".join(["ha"] * 10), **given, **penalties)["details"]
        (token,) = details["tokens"]
        return token["text"], token["logprob"]

    text, logprob = first()
    assert text == " ha"
    same, as_high = first(frequency_penalty=2)
    assert same == text
    assert as_high == pytest.approx(logprob, abs=1e-4)
    other, lower = first(repetition_penalty=2)
    assert other != text or lower < logprob - 0.5


@pytest.mark.parametrize(
    ("word", "length"), [("one", 1), ("two", 31), ("three", 32), ("four", 33), ("five", 96)]
)
def test_a_cached_prompt_says_the_same_whatever_its_length(
    server: Server, word: str, length: int
) -> None:
    """Around the size of a block, which is 32 tokens."""
    for last in (word, "and"):
        prompt = f" {word}" * (length - 1) + f" {last}"
        answers = [
            httpx.post(
                f"{server.url}/generate", json=body(prompt, {"max_new_tokens": 3, "details": True})
            )
            for _ in range(3)
        ]
        assert answers[0].headers["x-prompt-tokens"] == str(length)
        cold, *cached = [answer.json()["details"]["tokens"] for answer in answers]
        for tokens in cached:
            for one, other in zip(cold, tokens, strict=True):
                assert one["id"] == other["id"]
                assert one["logprob"] == pytest.approx(other["logprob"], abs=1e-4)


@pytest.mark.anyio
async def test_streams_under_load_say_what_whole_answers_do(server: Server) -> None:
    wholes: dict[int, str] = {}
    pieces: dict[int, str] = {}
    async with client(server) as http:

        async def ask(number: int) -> None:
            response = await generate(http, f"{number} green", max_new_tokens=16)
            wholes[number] = response["generated_text"]

        async def listen(number: int) -> None:
            said = events(http, f"{number} green", max_new_tokens=16)
            tokens = [event["token"] async for event in said]
            pieces[number] = "".join(token["text"] for token in tokens if not token["special"])

        async with anyio.create_task_group() as tasks:
            for number in range(32):
                tasks.start_soon(listen, number)
                tasks.start_soon(ask, number)
    assert len(wholes) == 32
    assert pieces == wholes


@pytest.mark.anyio
async def test_a_seed_says_the_same_in_any_company(server: Server) -> None:
    drawn: Json = {"max_new_tokens": 10, "temperature": 0.9}
    async with client(server) as http:
        alone = await generate(http, PROMPT, **drawn, seed=42)
        texts: list[str] = []

        async def ask(seed: int | None) -> None:
            given = {} if seed is None else {"seed": seed}
            response = await generate(http, PROMPT, **drawn, **given)
            if seed is not None:
                texts.append(response["generated_text"])

        async with anyio.create_task_group() as tasks:
            for seed in (42, None, 42, None, 42, None):
                tasks.start_soon(ask, seed)
    assert texts == [alone["generated_text"]] * 3


@pytest.mark.parametrize(
    "name",
    [
        "../../etc/passwd",
        "/etc/passwd",
        "a/../../b",
        "a\0b",
        "x" * 4096,
        "https://example.com/adapter",
        "file:///etc/passwd",
        "",
    ],
)
def test_a_wrong_adapter_is_refused_by_name(server: Server, name: str) -> None:
    for path in ("/generate", "/generate_stream", "/", "/invocations"):
        response = httpx.post(server.url + path, json=body(PROMPT, {"adapter_id": name}))
        assert response.status_code == 422
        error = response.json()["error"]
        assert "`adapter_id` must name a loaded adapter" in error
        assert name[:100] in error
        assert len(error) < 400


@pytest.mark.anyio
async def test_the_same_request_id_twice_and_long_ones(server: Server) -> None:
    async with client(server) as http:
        texts: dict[str, str] = {}

        async def ask(text: str, id: str) -> None:
            given = body(PROMPT, {"grammar": only(text), "forced_tokens": False})
            response = await http.post("/generate", json=given, headers={"x-request-id": id})
            assert response.status_code == 200
            assert len(response.headers["x-request-id"]) < 1000
            texts[text] = response.json()["generated_text"]

        async with anyio.create_task_group() as tasks:
            for text in ("monkeys dance all night", "apples are red"):
                tasks.start_soon(ask, text, "same")
        await ask("a", "x" * 30_000)
        await ask("b", "a%0d%0ab")
        too_long = {"x-request-id": "x" * 200_000}
        response = await http.post("/generate", json=body(PROMPT, {}), headers=too_long)
        assert response.status_code == 431
        assert all(text == said for text, said in texts.items())
    assert server.generate(PROMPT, max_new_tokens=1)
