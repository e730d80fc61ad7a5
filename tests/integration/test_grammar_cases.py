"""Faults that servers were reported to have with constrained requests. This one must not."""

from __future__ import annotations

import json
import math
import re
import socket
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import anyio
import httpx
import jsonschema
import psutil
import pytest

from tests.integration.serving import Json, Server, body, client, events, generate

PATHS = ["/generate", "/generate_stream", "/"]
STORY = "Once upon a time, in a small town by the sea,"
SHAPE: Json = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}, "n": {"enum": [1, 2, 3]}},
    "required": ["ok", "n"],
    "additionalProperties": False,
}
BIG: Json = {"properties": {"id": {"enum": [1234567890123456789, 1234567890123456790]}}}
BIG_REASON = (
    "1234567890123456789 cannot be enforced exactly: leave it out, or describe the value as a "
    "string with a `pattern`"
)
TAGGED: Json = {"type": "json_schema"}


def only(text: str) -> Json:
    """The grammar of this text alone: the answer does not depend on the model."""
    return {"type": "choice", "value": [text]}


async def whole_and_streamed(server: Server, **parameters: Any) -> tuple[str, list[Json]]:  # noqa: ANN401
    """The text of a response, and the events of a stream that was asked for the same."""
    async with client(server) as http:
        whole = await generate(http, "Say: ", **parameters)
        streamed = [event async for event in events(http, "Say: ", **parameters)]
    text: str = whole["generated_text"]
    return text, streamed


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("text", "stop", "left"),
    [
        ("one two three four", ["two thr"], "one two thr"),
        ("is it blue?\nyes", ["\n"], "is it blue?\n"),
        (" Carla! Hello", ["\n", "Carla:"], " Carla! Hello"),
        ("abcabcabd", ["abcabd"], "abcabcabd"),
        ("你好，世界🙂👍🏽 क्षि", ["👍"], "你好，世界🙂👍"),
    ],
)
@pytest.mark.parametrize("forced_tokens", [True, False])
async def test_a_stop_string_comes_once_and_nothing_after_it(
    server: Server, text: str, stop: list[str], left: str, *, forced_tokens: bool
) -> None:
    whole, streamed = await whole_and_streamed(
        server, grammar=only(text), stop=stop, forced_tokens=forced_tokens
    )
    assert whole == streamed[-1]["generated_text"] == left
    pieces = [event["token"]["text"] for event in streamed if not event["token"]["special"]]
    assert "".join(pieces) == left


@pytest.mark.anyio
async def test_characters_of_many_bytes_arrive_whole(server: Server) -> None:
    text = "你好，世界🙂👍🏽 क्षि"
    whole, streamed = await whole_and_streamed(server, grammar=only(text))
    pieces = [event["token"]["text"] for event in streamed if not event["token"]["special"]]
    assert whole == streamed[-1]["generated_text"] == "".join(pieces) == text
    assert not any("\ufffd" in piece for piece in pieces)

    async def cut_at(most: int) -> None:
        cut, streamed = await whole_and_streamed(server, grammar=only(text), max_new_tokens=most)
        assert cut == streamed[-1]["generated_text"]
        assert text.startswith(cut), "of a cut character nothing is left"

    async with anyio.create_task_group() as tasks:
        for most in range(1, len(pieces)):
            tasks.start_soon(cut_at, most)


@pytest.mark.anyio
async def test_log_probabilities_are_numbers(server: Server) -> None:
    for mode in ("raw", "processed"):
        response = httpx.post(
            f"{server.url}/generate",
            json=body(
                "Say: ",
                {
                    "grammar": only("abc"),
                    "details": True,
                    "top_n_tokens": 5,
                    "logprobs_mode": mode,
                    "decoder_input_details": True,
                },
            ),
            timeout=60,
        )

        def refuse(word: str) -> float:
            raise AssertionError(f"{word} is not JSON")

        details = json.loads(response.text, parse_constant=refuse)["details"]
        for token in details["tokens"]:
            assert math.isfinite(token["logprob"]) and token["logprob"] <= 0
        for top in details["top_tokens"]:
            assert sum(math.exp(token["logprob"]) for token in top) <= 1 + 1e-5


@pytest.mark.anyio
async def test_every_stream_ends_with_its_end_or_an_error(server: Server) -> None:
    grammars: list[Json | None] = [
        None,
        {"type": "json", "value": SHAPE},
        {"type": "regex", "value": "[a-z]{3,9} [0-9]{2}"},
        {"type": "grammar", "value": 'root ::= "a" | "b" root'},
        only("a text that is given"),
        {"type": "grammar", "value": 'start: e\ne: e e | "a"'},  # meets its limit midway
    ]
    ends: list[Json] = []
    left = 0
    async with client(server) as http:

        async def ask(i: int) -> None:
            nonlocal left
            given: Json = {"max_new_tokens": 1 if i % 30 == 7 else 24, "seed": i}
            given |= {"temperature": 1.5} if i % 2 else {}
            given |= {"grammar": grammar} if (grammar := grammars[i % len(grammars)]) else {}
            last: Json = {}
            async for event in events(http, f"{i} things: ", **given):
                assert not _is_end(last), "nothing follows the end"
                last = event
                if i % 5 == 0:
                    left += 1
                    return
            ends.append(last)

        async with anyio.create_task_group() as tasks:
            for i in range(60):
                tasks.start_soon(ask, i)
    assert (left, len(ends)) == (12, 48)
    assert all(_is_end(end) for end in ends)


def _is_end(event: Json) -> bool:
    return event.get("generated_text") is not None or "error" in event


@pytest.mark.anyio
async def test_concurrent_streams_keep_their_own_tokens(server: Server) -> None:
    texts = [" ".join(f"word{i}{j}" for j in range(12)) for i in range(16)]
    found: dict[int, str] = {}
    async with client(server) as http:

        async def ask(i: int) -> None:
            await anyio.sleep(0.03 * (i * 7 % 16))
            pieces: list[str] = []
            grammar = {"type": "regex", "value": re.escape(texts[i])}
            async for event in events(
                http, "Say: ", grammar=grammar, forced_tokens=bool(i % 2), max_new_tokens=100
            ):
                pieces.append(event["token"]["text"])
                if i % 4 == 0 and len(pieces) == 5:
                    return
                if event["generated_text"] is not None:
                    assert event["generated_text"] == texts[i]
            found[i] = "".join(pieces)

        async with anyio.create_task_group() as tasks:
            for i in range(16):
                tasks.start_soon(ask, i)
    assert found == {i: text for i, text in enumerate(texts) if i % 4}


@pytest.mark.anyio
async def test_the_next_answer_has_nothing_of_a_broken_one(server: Server) -> None:
    grammar = only("monkeys dance all night")
    for forced_tokens in (True, False):
        for _ in range(8):
            given = {"grammar": grammar, "forced_tokens": forced_tokens}
            _reset_after_first_chunk(server, body("Say: ", given))
            whole = server.generate("Say: ", grammar=only("apples are red"))
            assert whole["generated_text"] == "apples are red"


def _reset_after_first_chunk(server: Server, request: Json) -> None:
    """Read the beginning of a stream, then break the connection without a farewell."""
    url = urlsplit(server.url)
    data = json.dumps(request).encode()
    with socket.create_connection((url.hostname or "", url.port or 0)) as connection:
        connection.sendall(
            b"POST /generate_stream HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
            b"content-length: %d\r\n\r\n%s" % (len(data), data)
        )
        assert connection.recv(64).startswith(b"HTTP/1.1 200")
        connection.setsockopt(
            socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00"
        )


FORMS: dict[str, tuple[Json, Callable[[str], object]]] = {
    "json": ({"type": "json", "value": SHAPE}, lambda text: _obeys(text)),
    "json text": ({"type": "json", "value": json.dumps(SHAPE)}, lambda text: _obeys(text)),
    "json_object": ({"type": "json_object", "value": SHAPE}, lambda text: _obeys(text)),
    "json_schema": (
        {"type": "json_schema", "value": {"schema": SHAPE, "strict": True}},
        lambda text: _obeys(text),
    ),
    "not strict": (
        {"type": "json_schema", "value": {"schema": SHAPE, "strict": False}},
        lambda text: _obeys(text),
    ),
    "regex": (
        {"type": "regex", "value": "[ab]{1,3}-[0-9]+"},
        partial(re.fullmatch, "[ab]{1,3}-[0-9]*"),
    ),
    "choice": (
        {"type": "choice", "value": ["red", "green", "blue"]},
        partial(re.fullmatch, "red|green|blue"),
    ),
    "lark": (
        {"type": "grammar", "value": 'start: ("x" | "y")~1..3 "."'},
        partial(re.fullmatch, r"[xy]{1,3}\."),
    ),
    "gbnf": (
        {"type": "grammar", "value": 'root ::= "x" root "y" | "z"'},
        partial(re.fullmatch, "x*zy*|x+"),
    ),
    "any object": ({"type": "json_object"}, partial(re.match, r"\{(\"|\}$)")),
}


def _obeys(text: str) -> bool:
    jsonschema.validate(json.loads(text), SHAPE)
    return True


@pytest.mark.anyio
async def test_every_form_is_obeyed_however_wild_the_draw(server: Server) -> None:
    found: dict[tuple[str, int, bool], str] = {}
    async with client(server) as http:
        limiter = anyio.CapacityLimiter(64)

        async def ask(form: str, seed: int, *, stream: bool) -> None:
            given: Json = {"grammar": FORMS[form][0], "temperature": 1.5, "seed": seed}
            given |= {"max_new_tokens": 16}
            async with limiter:
                if stream:
                    last = [event async for event in events(http, "Tell: ", **given)][-1]
                else:
                    last = await generate(http, "Tell: ", **given)
            found[form, seed, stream] = last["generated_text"]

        async with anyio.create_task_group() as tasks:
            for form in FORMS:
                for seed in range(10):
                    for stream in (False, True):
                        tasks.start_soon(partial(ask, form, seed, stream=stream))
    for (form, seed, _), text in found.items():
        assert FORMS[form][1](text), (form, seed, text)
    assert len(found) == len(FORMS) * 20


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("grammar", "reason"),
    [
        ({"type": "grammar", "value": 'root ::= "a" ('}, "`)` is expected here"),
        (
            {"type": "grammar", "value": "root ::= missing"},
            "there is no rule `missing`, at line 1, column 10",
        ),
        ({"type": "grammar", "value": 'root ::= root "a"'}, "no text matches it"),
        ({"type": "grammar", "value": "start: missing"}, "unknown name: "),
        ({"type": "grammar", "value": "start: ("}, "1(9): Expected token"),
        ({"type": "grammar", "value": "%%%"}, "lexer error"),
        ({"type": "grammar", "value": ""}, "Empty grammar"),
        ({"type": "grammar", "value": "root ::= [z-a]"}, "comes before its first"),
        ({"type": "grammar", "value": 3}, "should be a valid string"),
        ({"type": "grammar", "value": None}, "should be a valid string"),
        ({"type": "regex", "value": "a("}, "unclosed group"),
        ({"type": "regex", "value": "(?=a)b"}, "look-around"),
        ({"type": "regex", "value": "\\"}, "it ends within an escape, at character 1"),
        ({"type": "grammar", "value": 'start: "a" A\nA: /a/ & /b/'}, "no text matches it"),
        ({"type": "json", "value": {"type": "strng"}}, "Invalid type: strng (at #/type)"),
        ({"type": "json", "value": '{"a":\n ]'}, "at line 2 column 2"),
        ({"type": "json", "value": BIG}, f"{BIG_REASON} (at #/properties/id/enum)"),
        ({"type": "json", "value": json.dumps(BIG)}, f"{BIG_REASON} (at #/properties/id/enum)"),
        ({"type": "json", "value": '{"const": -9223372036854775808}'}, "exactly: leave it out"),
        ({"type": "json_schema", "value": {"schema": BIG, "strict": True}}, "(at #/properties/id/"),
        (
            {"type": "structural_tag", "value": {"format": {**TAGGED, "json_schema": BIG}}},
            f"format.json_schema: {BIG_REASON} (at #/properties/id/enum)",
        ),
        ({"type": "choice", "value": []}, "at least 1 item"),
        ({"type": "nonsense", "value": "a"}, "nonsense"),
        ({"type": "text"}, "text"),
        ("start: /a/", "grammar: "),
        (["a"], "grammar: "),
        (True, "grammar: "),
        ({}, "grammar: "),
    ],
)
def test_what_is_wrong_with_a_grammar_is_said(
    server: Server, path: str, grammar: object, reason: str
) -> None:
    response = httpx.post(server.url + path, json=body("a", {"grammar": grammar}), timeout=30)
    assert response.status_code == 422
    assert reason in response.text
    assert "backtrace" not in response.text


def test_nesting_without_end_is_refused_wherever_it_stands(server: Server) -> None:
    for depth in (150, 900, 10_000, 100_000):
        nested = '{"not":' * depth + "{}" + "}" * depth
        for value in (nested, json.dumps(nested)):
            for type in ("json", "json_object", "choice", "structural_tag"):
                response = httpx.post(
                    f"{server.url}/generate",
                    content='{"inputs": "a", "parameters": {"grammar": '
                    f'{{"type": "{type}", "value": {value}}}}}}}',
                    headers={"content-type": "application/json"},
                    timeout=30,
                )
                assert response.status_code in (400, 422)
                if type == "json" and depth < 1000 or value != nested and type == "json":
                    assert f"it is nested {depth + 1} deep" in response.text
                    assert "--max-grammar-depth" in response.text
    assert server.generate("Say: ", grammar=only("alive"))["generated_text"] == "alive"


def _huge(**parameters: Any) -> Json:  # noqa: ANN401
    return body("a", {"max_new_tokens": 2, **parameters})


@pytest.mark.anyio
async def test_huge_requests_are_refused_at_once_and_neighbours_go_on(server: Server) -> None:
    many = [f"word {i}" for i in range(90_000)]
    references = {f"d{i}": {"items": {"$ref": f"#/$defs/d{i + 1}"}} for i in range(10_000)}
    requests = [
        _huge(grammar={"type": "json", "value": {"enum": many}}),
        _huge(grammar={"type": "choice", "value": many}),
        _huge(grammar={"type": "regex", "value": "a" * 1_000_001}),
        _huge(grammar={"type": "json", "value": {"$ref": "#/$defs/d0", "$defs": references}}),
        _huge(grammar={"type": "json", "value": {"enum": many * 3}}),
        _huge(stop=many[:10_000]),
        _huge(stop=["x" * 1_000_000]),
        _huge(top_n_tokens=100_000),
        _huge(logit_bias={str(i): 1 for i in range(100_000)}),
        _huge(logits_processors=[{"name": "x"}] * 10_000),
    ]
    took: list[float] = []

    async def send(http: httpx.AsyncClient) -> None:
        for request in requests:
            start = time.monotonic()
            response = await http.post("/generate", json=request)
            took.append(time.monotonic() - start)
            assert response.status_code in (413, 422, 429), response.text

    await _beside_a_stream(server, send)
    print("seconds:", [round(seconds, 2) for seconds in took])  # noqa: T201
    assert max(took) < 10


@pytest.mark.anyio
@pytest.mark.parametrize("depth", [8, 12, 16, 24])
async def test_nested_alternatives_do_not_explode(server: Server, depth: int) -> None:
    schema = _alternatives(depth, "x")
    start = time.monotonic()
    async with client(server) as http:
        grammar = {"type": "json", "value": schema}
        response = await http.post("/generate", json=_huge(grammar=grammar))
    assert response.status_code in (200, 422)
    assert time.monotonic() - start < 15


@pytest.mark.anyio
async def test_a_hundred_nested_schemas_in_a_row(server: Server) -> None:
    """And a megabyte of rules, which takes longer than a grammar may."""

    async def send(http: httpx.AsyncClient) -> None:
        async def send_some(first: int) -> None:
            for i in range(first, 100, 4):
                depth = (8, 12, 16, 24)[i % 4]
                grammar = {"type": "json", "value": _alternatives(depth, f"p{i}_")}
                request = body("a", {"grammar": grammar, "max_new_tokens": 1})
                response = await http.post("/generate", json=request)
                assert response.status_code in (200, 422)

        async def send_rules() -> None:
            rules = "".join(f'r{i} ::= "a{i}"\n' for i in range(20_000))
            grammar = {"type": "grammar", "value": f"root ::= r0\n{rules}"}
            response = await http.post("/generate", json=_huge(grammar=grammar))
            assert response.status_code in (200, 422), response.text

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(send_rules)
            for first in range(4):
                tasks.start_soon(send_some, first)

    await _beside_a_stream(server, send)
    await _wait_until_quiet(server)
    assert server.generate("Say: ", grammar=only("valid"))["generated_text"] == "valid"


def _alternatives(depth: int, name: str) -> Json:
    """`oneOf` with two branches, so deeply nested."""
    schema: Json = {"type": "integer"}
    for i in range(depth):
        branch = {"type": "object", "properties": {f"{name}{i}": schema}}
        schema = {"oneOf": [{**branch, "required": [f"{name}{i}"]}, {"type": "string"}]}
    return schema


@pytest.mark.anyio
async def test_a_compilation_that_nobody_waits_for_costs_nothing(server: Server) -> None:
    """The first of these takes too long, the second ends the process that compiles it."""
    endless = {"type": "integer", "multipleOf": 10_000_019}
    crash = "start: r0\n" + "".join(f"r{i}: r{i + 1}\n" for i in range(10_000)) + 'r10000: "a"'
    pid = server.engine_pid()

    async def send(http: httpx.AsyncClient) -> None:
        async def leave() -> None:
            with suppress(httpx.ReadTimeout):
                grammar = {"type": "json", "value": endless}
                await http.post("/generate", json=_huge(grammar=grammar), timeout=1)

        async with anyio.create_task_group() as tasks:
            for _ in range(8):
                tasks.start_soon(leave)
            await anyio.sleep(0.5)
            assert (await http.get("/health")).status_code == 200
            grammar = {"type": "grammar", "value": crash}
            response = await http.post("/generate", json=_huge(grammar=grammar))
            assert response.status_code in (422, 429), "429: it counts among the slow ones"
            if response.status_code == 422:
                assert "it is too large or too deeply nested to compile" in response.text

    await _beside_a_stream(server, send)
    await _wait_until_quiet(server)
    assert server.generate("Say: ", grammar=only("alive"))["generated_text"] == "alive"
    assert server.engine_pid() == pid


@pytest.mark.anyio
async def test_a_client_that_leaves_frees_its_constrained_row(server: Server) -> None:
    async with client(server) as http:
        given = {"grammar": {"type": "regex", "value": "[a-z ]*"}, "ignore_eos": True}
        async for _ in events(http, STORY, max_new_tokens=2000, **given):
            break
    deadline = time.monotonic() + 2
    while server.metric("tgi_batch_current_size") or server.metric("tgi_queue_size"):
        assert time.monotonic() < deadline
        await anyio.sleep(0.02)


async def _beside_a_stream(
    server: Server, send: Callable[[httpx.AsyncClient], Awaitable[None]]
) -> None:
    """Do something while a plain stream runs, whose tokens must not be held up."""
    async with client(server) as http:
        times: list[float] = []
        done = anyio.Event()

        async def listen() -> None:
            stream = events(http, STORY, max_new_tokens=4000, ignore_eos=True)
            async for _ in stream:
                times.append(time.monotonic())
                if done.is_set():
                    return

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(listen)
            while len(times) < 3:
                await anyio.sleep(0.01)
            await send(http)
            done.set()
    gaps = [after - before for before, after in zip(times, times[1:], strict=False)]
    print(f"{len(times)} tokens, longest gap {max(gaps):.3f} s")  # noqa: T201
    assert max(gaps) < 5, "whoever waits for a compilation waits longer"


async def _wait_until_quiet(server: Server) -> None:
    """Until neither the server nor what it started computes anything."""
    deadline = time.monotonic() + 5
    while await _cpu_seconds(server, 0.3) > 0.1:
        assert time.monotonic() < deadline, "somebody still computes"


async def _cpu_seconds(server: Server, seconds: float) -> float:
    def used() -> float:
        root = psutil.Process(server.process.pid)
        times = [process.cpu_times() for process in (root, *root.children(recursive=True))]
        return sum(time.user + time.system for time in times)

    before = used()
    await anyio.sleep(seconds)
    return used() - before
