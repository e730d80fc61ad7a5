"""Texts with a grammar, over the real model: whole, right, and ended where they end.

Where the model would hardly try what is wrong, `logit_bias` pushes it there.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import httpx
import jsonschema
import pytest

from tests.integration.serving import Json, Server, body, token_ids

PROMPT = "An example in JSON: "
EOS = "2"
PUSH = 100.0
"""Added to a token's logit, it makes the token the likeliest of those that are allowed."""
CLOSERS = {10.0: ['"', '"}', '"]', '"}}'], 6.0: ["}", "]", "}}", "]}"]}
"""Added to what closes strings, objects and arrays, it keeps random texts short."""
SEEDS = (1, 2, 3)

ADDRESS = r"((25[0-5]|2[0-4]\d|[01]?\d\d?)\.){3}(25[0-5]|2[0-4]\d|[01]?\d\d?)"
STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 4}, "maxItems": 2},
    },
    "required": ["name", "tags"],
    "additionalProperties": False,
}


class SchemaCase(NamedTuple):
    """A JSON Schema, and texts that break it, as a model might begin them."""

    schema: Json
    wrong: tuple[str, ...]


def integers(number: int) -> Json:
    """A schema of so many optional properties."""
    properties = {f"p{i}": {"type": "integer"} for i in range(number)}
    return {"type": "object", "properties": properties}


SCHEMAS = {
    "allOf of two objects": SchemaCase(
        {
            "allOf": [
                {
                    "type": "object",
                    "properties": {"x": {"type": "integer", "minimum": 10}},
                    "required": ["x"],
                },
                {"type": "object", "properties": {"y": {"type": "string"}}, "required": ["y"]},
            ]
        },
        ("42", "[]", '{"y":1}', '{"x":9,"y":"a"}'),
    ),
    "anyOf of required properties": SchemaCase(
        {
            "type": "object",
            "properties": {"modifier": {"type": "string"}, "id": {"type": "integer"}},
            "additionalProperties": False,
            "anyOf": [{"required": ["modifier"]}, {"required": ["id"]}],
        },
        ("[1]", "{}", '"id"', "1", '{"other":1}'),
    ),
    "a required property of any type": SchemaCase(
        {"type": "object", "required": ["a"]}, ("{}", '{"b":1}', "1")
    ),
    "pattern and maxLength": SchemaCase(
        {"type": "string", "pattern": "^[a-z]+$", "maxLength": 3},
        ('"abcdef"', '""', '"A"', '"a1"'),
    ),
    "alternatives of anchored patterns": SchemaCase(
        {"type": "string", "pattern": "^a$|^b$"}, ('"c"', '"ab"', '""')
    ),
    "a property that two keywords describe": SchemaCase(
        {
            "type": "object",
            "properties": {
                "score": {"type": "integer", "multipleOf": 5},
                "tags": {"type": "string", "minLength": 10},
            },
            "patternProperties": {"^score$": {"type": "integer", "minimum": 0}},
            "required": ["score", "tags"],
            "additionalProperties": False,
        },
        ('{"score":7,"tags":"0123456789"}', '{"score":-5,"tags":"0123456789"}', "{\n\n\n\n"),
    ),
    "minimum of a number": SchemaCase(
        {"minimum": 0, "type": "number"}, ("-3", "-0.5", '"3"', "null")
    ),
    "an array at the top": SchemaCase(
        {"type": "array", "items": {"type": "integer"}, "maxItems": 3},
        ("[1,1,1,1]", '{"a":1}', '["a"]', "1"),
    ),
    "a schema that says nothing": SchemaCase({"abc": "def"}, ("abc", "'a'", "True")),
    "eight optional properties": SchemaCase(
        {**integers(8), "additionalProperties": False}, ('{"q":1}', '{"p0":"1"}', "[]")
    ),
    "a boolean": SchemaCase({"type": "boolean"}, ("True", "null", '"true"', "0")),
    "nested long strings": SchemaCase(
        {
            "type": "object",
            "properties": {
                "a": {
                    "type": "object",
                    "properties": {"b": {"type": "string", "maxLength": 2000}},
                    "required": ["b"],
                    "additionalProperties": False,
                }
            },
            "required": ["a"],
            "additionalProperties": False,
        },
        ('{"a":{}}', '{"a":{"b":1}}', '{"a":"b"}'),
    ),
    "a very long string": SchemaCase({"type": "string", "maxLength": 65536}, ("1", "{}", "a")),
    "no properties": SchemaCase({"type": "object", "properties": {}}, ("[]", "1", '"a"')),
    "a number": SchemaCase({"type": "number"}, ('"1"', "a", ".5", "+1")),
}


def run_all(server: Server, requests: Iterable[tuple[str, Json]]) -> list[Json]:
    """POST /generate for all at once: prompts and parameters. Details are in the responses."""

    def run(request: tuple[str, Json]) -> Json:
        return server.generate(request[0], **{"details": True, **request[1]})

    with ThreadPoolExecutor(64) as threads:
        return list(threads.map(run, requests))


def tokens_of(server: Server, text: str) -> list[str]:
    """The ids of a text's tokens, as `logit_bias` names them."""
    response = httpx.post(
        f"{server.url}/tokenize", json={"inputs": text, "add_special_tokens": False}
    )
    return [str(token["id"]) for token in response.json()]


def push(server: Server, *texts: str, by: float = PUSH) -> dict[str, float]:
    """A `logit_bias` towards the tokens of these texts."""
    return {id: by for text in texts for id in tokens_of(server, text)}


@pytest.fixture(scope="module")
def closing(server: Server) -> dict[str, float]:
    """A `logit_bias` that keeps texts short."""
    bias = {EOS: 14.0}
    for nudge, ends in CLOSERS.items():
        bias.update(
            {id: nudge for end in ends if len(ids := tokens_of(server, end)) == 1 for id in ids}
        )
    return bias


def variations(
    grammar: Json,
    seeds: Iterable[int],
    **parameters: Any,  # noqa: ANN401 - JSON
) -> list[Json]:
    """The parameters of a greedy request and of some wild ones."""
    greedy = {"grammar": grammar, "max_new_tokens": 48, "frequency_penalty": 1.0, **parameters}
    return [greedy, *({**greedy, "temperature": 1.5, "seed": seed} for seed in seeds)]


def texts(
    server: Server,
    grammar: Json,
    prompt: str = PROMPT,
    seeds: Iterable[int] = SEEDS[:1],
    **parameters: Any,  # noqa: ANN401 - JSON
) -> list[str]:
    """What comes of them, each of which must end by itself."""
    requests = variations(grammar, seeds, **parameters)
    responses = run_all(server, [(prompt, request) for request in requests])
    for response in responses:
        assert response["details"]["finish_reason"] == "eos_token", response["generated_text"]
    return [response["generated_text"] for response in responses]


def as_json(schema: Json, **options: Any) -> Json:  # noqa: ANN401 - JSON
    """The grammar of a schema."""
    return {"type": "json", "value": schema, **options}


def as_regex(pattern: str) -> Json:
    """The grammar of a regular expression."""
    return {"type": "regex", "value": pattern}


def refusal(server: Server, grammar: Json) -> str:
    """Why a grammar is refused."""
    response = httpx.post(
        f"{server.url}/generate", json=body(PROMPT, {"grammar": grammar}), timeout=30
    )
    assert response.status_code == 422, response.text
    reason: str = response.json()["error"]
    return reason


@pytest.fixture(scope="module")
def obeying(server: Server, closing: dict[str, float]) -> dict[str, list[Json]]:
    """What comes of each schema, all in one batch."""
    requests = [
        (PROMPT, parameters)
        for case in SCHEMAS.values()
        for parameters in variations(as_json(case.schema), SEEDS, logit_bias=closing)
    ]
    responses = run_all(server, requests)
    number = 1 + len(SEEDS)
    return {name: responses[i * number :][:number] for i, name in enumerate(SCHEMAS)}


@pytest.mark.parametrize("name", SCHEMAS)
def test_json_obeys_its_schema(obeying: dict[str, list[Json]], name: str) -> None:
    """Among them: allOf and anyOf that lost a branch; bounds, lengths and patterns of which one
    was dropped; objects that could only be empty; schemas without properties that were refused,
    or took minutes; long bounds that no grammar could be made of.
    """
    for response in obeying[name]:
        text = response["generated_text"]
        assert response["details"]["finish_reason"] == "eos_token", text
        jsonschema.validate(json.loads(text), SCHEMAS[name].schema)


@pytest.fixture(scope="module")
def pushed(server: Server) -> dict[tuple[str, str], list[Json]]:
    """By schema and text that breaks it: what comes of a push there, without grammar and with."""
    pairs = [(name, wrong) for name, case in SCHEMAS.items() for wrong in case.wrong]
    requests: list[tuple[str, Json]] = []
    for name, wrong in pairs:
        free: Json = {"max_new_tokens": 1, "logit_bias": push(server, wrong)}
        grammar = as_json(SCHEMAS[name].schema)
        bound = {**free, "max_new_tokens": 8, "grammar": grammar}
        requests += [(PROMPT, free), (PROMPT, bound)]
    responses = run_all(server, requests)
    return {pair: responses[2 * i :][:2] for i, pair in enumerate(pairs)}


@pytest.mark.parametrize("name", SCHEMAS)
def test_json_that_breaks_its_schema_cannot_be_had(
    server: Server, pushed: dict[tuple[str, str], list[Json]], name: str
) -> None:
    case = SCHEMAS[name]
    for wrong in case.wrong:
        free, bound = pushed[name, wrong]
        assert set(map(str, token_ids(free))) <= set(tokens_of(server, wrong)), "no real push"
        text = bound["generated_text"]
        assert not text.startswith(wrong)
        if bound["details"]["finish_reason"] == "eos_token":
            jsonschema.validate(json.loads(text), case.schema)


@pytest.mark.parametrize(
    ("grammar", "reason"),
    [
        # What would not be enforced is refused, not dropped in silence.
        (
            as_json({"type": "array", "items": {"type": "integer"}, "uniqueItems": True}),
            'Unimplemented keys: ["uniqueItems"]',
        ),
        (
            as_json(
                {
                    "type": "object",
                    "propertyNames": {"pattern": "^a$|^b$"},
                    "additionalProperties": {"type": "integer"},
                }
            ),
            'Unimplemented keys: ["propertyNames"]',
        ),
        # What is wrong has its reason, and is never an empty or unconstrained answer.
        (as_json({"type": "strng"}), "Invalid type: strng"),
        (as_json({"type": "string", "pattern": "[a-"}), "unclosed character class"),
        (as_json({"type": "string", "pattern": "^(?=a)b$"}), "look-around"),
        (
            {
                "type": "json_schema",
                "value": {"schema": {"type": "string", "pattern": "(a"}, "strict": True},
            },
            "unclosed group",
        ),
        (as_regex(r"\bword"), "lookarounds not supported"),
        (as_regex(r"(a|b)\1"), "backreferences are not supported"),
    ],
)
def test_a_grammar_that_cannot_be_kept_is_refused(
    server: Server, grammar: Json, reason: str
) -> None:
    text = refusal(server, grammar)
    assert text.startswith("Input validation error: grammar is not valid: ")
    assert reason in text
    assert server.generate("a", max_new_tokens=1)


def test_separators_that_the_schema_itself_describes(
    server: Server, closing: dict[str, float]
) -> None:
    """Loose separators once let a property's name end with the wrong quote."""
    schema = {
        "type": "object",
        "properties": {
            "forecast": {"type": "string", "maxLength": 6},
            "rain": {"type": "boolean"},
        },
        "required": ["forecast", "rain"],
        "additionalProperties": False,
        "x-guidance": {
            "key_separator": r"[ \n]{0,2}:[ \n]{0,2}",
            "item_separator": r"[ \n]{0,2},[ \n]{0,2}",
        },
    }
    quotes = push(server, "'", "':", " '")
    for bias in (closing, quotes, push(server, " ", "\n")):
        for text in texts(server, as_json(schema), logit_bias=bias):
            jsonschema.validate(json.loads(text), schema)
            assert re.match(r'\{"forecast"[ \n]{0,2}:[ \n]{0,2}"', text)


def test_an_address_ends_with_its_last_digit(server: Server) -> None:
    """A state machine that had reached its last state once went on there: 1.1.1.1111111."""
    one = push(server, "1")
    for bias in ({}, one):
        for text in texts(server, as_regex(ADDRESS), "The host is ", seeds=SEEDS, logit_bias=bias):
            assert re.fullmatch(ADDRESS, text)
    assert text == "111.111.111.111", "the last digit that fits, then nothing"


def test_a_repetition_of_a_repetition(server: Server) -> None:
    """It once ended the whole server."""
    grammar = as_regex("foo**")
    for text in texts(server, grammar, logit_bias={EOS: PUSH}):
        assert re.fullmatch("foo*", text)
    long = server.generate(PROMPT, grammar=grammar, max_new_tokens=6)["generated_text"]
    assert re.fullmatch("foo*", long)


def test_anchored_patterns_one_after_the_other(server: Server) -> None:
    """The second, nearly the same as the first, once crashed the engine."""
    for pattern in ("^(.*)$", "^(|.*)$"):
        lines = push(server, "\n", "\n\n")
        cut = server.generate(
            "Dear Sir,\n", grammar=as_regex(pattern), max_new_tokens=8, logit_bias=lines
        )
        assert cut["generated_text"]
        assert "\n" not in cut["generated_text"]
        assert set(texts(server, as_regex(pattern), logit_bias={EOS: PUSH})) == {""}


@pytest.mark.parametrize("pattern", ["[\\x00-\u2e7f]+", r"[\x00-\u2e7f]+", "[\x00-\u2e7f]+"])
def test_characters_from_nul_on(server: Server, pattern: str) -> None:
    """A NUL in a pattern once ended it, as in C."""
    nul, beyond = push(server, "\0"), push(server, "你好", "世界")
    requests = [
        (PROMPT, {"grammar": as_regex(pattern), "max_new_tokens": 6, "logit_bias": bias})
        for bias in (nul, beyond)
    ]
    zeros, within = (response["generated_text"] for response in run_all(server, requests))
    assert zeros == "\0" * 6
    assert within
    assert re.fullmatch(r"[\x00-\u2e7f]+\ufffd?", within)


def test_hundreds_of_optional_properties_take_no_time(
    server: Server, closing: dict[str, float]
) -> None:
    schema = integers(500)
    start = time.monotonic()
    bias = {**closing, **push(server, '{"')}
    for text in texts(server, as_json(schema), logit_bias=bias):
        assert text.startswith('{"')
        jsonschema.validate(json.loads(text), schema)
    assert time.monotonic() - start < 30


def test_compact_json_has_no_room_for_white_space(server: Server) -> None:
    """A weak model can fill all its tokens with it."""
    spaces = push(server, " ", "  ", "\n", "\n\n", "\t", "\r")
    for grammar in (as_json(PERSON), {"type": "json_object", "value": PERSON}):
        whole = texts(server, grammar, logit_bias=spaces)
        assert any(re.search(r"\s", text) for text in whole), "in strings, it is all that came"
        for text in whole:
            jsonschema.validate(json.loads(text), PERSON)
            assert not re.search(r"\s", STRING.sub('""', text))


@pytest.mark.parametrize(("pattern", "longest"), [("[ ]?", " "), (r"[ \n]{0,2}", r"[ \n]{2}")])
def test_white_space_is_what_its_pattern_allows(server: Server, pattern: str, longest: str) -> None:
    spaces = push(server, " ", "  ", "\n", "\n\n", "\t", "\r")
    grammar = as_json(PERSON, whitespace_pattern=pattern)
    for text in texts(server, grammar, logit_bias=spaces, max_new_tokens=64):
        jsonschema.validate(json.loads(text), PERSON)
        between = re.findall(r"\s+", STRING.sub('""', text))
        assert between
        assert all(re.fullmatch(pattern, space) for space in between)
        assert any(re.fullmatch(longest, space) for space in between)


def test_a_grammar_outranks_the_minimum_length(server: Server) -> None:
    """Where all that the grammar allows was ruled out, garbage or a crash came of it."""
    grammar = as_json({"type": "boolean"})
    for text in texts(server, grammar, min_new_tokens=64, max_new_tokens=100):
        assert text in ("true", "false")
    for text in texts(server, as_regex("(ab){0,20}"), min_new_tokens=8, logit_bias={EOS: PUSH}):
        assert re.fullmatch("(ab){4,20}", text), "the minimum holds as far as the grammar can"


def test_a_bias_against_all_that_is_allowed_changes_nothing(server: Server) -> None:
    words = ("yes", "no")
    against = push(server, *words, "y", "n", "ye", "es", "o", "s", by=-100.0)
    assert set(texts(server, as_regex("yes|no"), logit_bias=against)) <= set(words)
    penalized: Json = {"repetition_penalty": 10.0, "frequency_penalty": 2.0}
    assert set(texts(server, as_regex("(yes){4}"), **penalized)) == {"yes" * 4}


def test_in_a_mixed_batch_each_gets_what_it_gets_alone(server: Server) -> None:
    """State that requests shared once mixed their texts; two with one grammar most of all."""
    grammars = [
        None,
        as_json(PERSON),
        as_json(PERSON),
        as_regex(ADDRESS),
        {"type": "choice", "value": ["red", "green"]},
        {"type": "json_object"},
        {"type": "grammar", "value": 'start: "(" start ")" | "x"'},
    ]
    requests: list[tuple[str, Json]] = [
        (f"Example {number} is: ", {"max_new_tokens": 8, "temperature": 1.5, "seed": number})
        for number in range(len(grammars))
    ]
    for (_, parameters), grammar in zip(requests, grammars, strict=True):
        if grammar is not None:
            parameters["grammar"] = grammar
    together = run_all(server, requests)
    for request, among in zip(requests, together, strict=True):
        (alone,) = run_all(server, [request])
        assert token_ids(among) == token_ids(alone)
        assert among["generated_text"] == alone["generated_text"]


@pytest.mark.parametrize("streamed_beside", [False, True])
def test_siblings_are_constrained_apart(server: Server, streamed_beside: bool) -> None:
    parameters = {
        "grammar": as_json(PERSON),
        "best_of": 2,
        "temperature": 1.5,
        "max_new_tokens": 40,
    }
    others = [(PROMPT, {"grammar": as_json(PERSON), "max_new_tokens": 40})]
    best, *_ = run_all(server, [(PROMPT, parameters), *(others if streamed_beside else [])])
    (other,) = best["details"]["best_of_sequences"]
    assert token_ids(best) != [token["id"] for token in other["tokens"]]
    for text in (best["generated_text"], other["generated_text"]):
        jsonschema.validate(json.loads(text), PERSON)


@pytest.mark.parametrize("length", [12, 40])
def test_a_longest_length_is_reached_and_not_passed(server: Server, length: int) -> None:
    schema = {"type": "string", "maxLength": length}
    for text in texts(server, as_json(schema), logit_bias=push(server, "a", "aaaa")):
        value = json.loads(text)
        assert len(value) == length
        assert value.endswith("a" * (length - 3)), "all but what came with the first quote"


def test_square_brackets_in_gbnf_are_a_set_of_characters(server: Server) -> None:
    """As in EBNF they might be meant as an option, which GBNF writes with a question mark."""
    of_letters = {"type": "grammar", "value": "root ::= [sign] digit\ndigit ::= [0-9]"}
    optional = {"type": "grammar", "value": 'root ::= ("+" | "-")? digit\ndigit ::= [0-9]'}
    minus = push(server, "-")
    for text in texts(server, of_letters, logit_bias=minus):
        assert re.fullmatch("[sign][0-9]", text)
    for text in texts(server, optional, logit_bias=minus):
        assert re.fullmatch("-[0-9]", text)


def test_optional_ends_can_be_reached_and_left_out(server: Server) -> None:
    """A state behind one that could already end the text once went missing."""
    for pattern in ("a(-b)?", "a-b|a"):
        assert set(texts(server, as_regex(pattern), logit_bias=push(server, "-", "b"))) == {"a-b"}
        assert set(texts(server, as_regex(pattern), logit_bias={EOS: PUSH})) == {"a"}


def test_numbers_may_have_fractions_and_exponents(server: Server) -> None:
    grammar = as_json({"type": "number"})
    prompts = {number: f"{number}\n" * 8 for number in ("12.5", "-0.1", "1e5")}
    requests = [
        (prompt, {"grammar": grammar, "max_new_tokens": len(tokens_of(server, number))})
        for number, prompt in prompts.items()
    ]
    responses = run_all(server, requests)
    assert [response["generated_text"] for response in responses] == list(prompts)


@pytest.mark.parametrize(
    ("grammar", "whole"),
    [
        (as_regex("one|two"), "one|two"),
        (as_json({"enum": ["a", {"b": 1}]}), r'"a"|\{"b":1\}'),
        ({"type": "choice", "value": ["red", "reddish"]}, "reddish"),
        ({"type": "grammar", "value": 'start: "a" ("b" | "c")~3'}, "a[bc]{3}"),
        ({"type": "grammar", "value": 'root ::= "x" ("y" | "z")'}, "x[yz]"),
    ],
)
def test_a_text_ends_as_soon_as_nothing_can_follow(
    server: Server, grammar: Json, whole: str
) -> None:
    """No forward to hear the model say so; and it cannot ramble on."""
    bias = push(server, "ish", "dish") if "redd" in whole else {}
    requests = variations(grammar, SEEDS, ignore_eos=True, min_new_tokens=8, logit_bias=bias)
    for response in run_all(server, [(PROMPT, request) for request in requests]):
        details = response["details"]
        assert details["finish_reason"] == "eos_token"
        assert re.fullmatch(whole, response["generated_text"])
        assert not details["tokens"][-1]["special"]
        assert details["generated_tokens"] == len(details["tokens"])


@pytest.mark.parametrize(
    "grammar",
    [
        as_regex("[a-z]{200}"),
        as_regex("a{200}"),
        {"type": "grammar", "value": 'start: "a" start'},
        as_json({"type": "object", "properties": {"c": {"$ref": "#"}}, "required": ["c"]}),
        as_json({"type": "array", "items": {"$ref": "#"}, "minItems": 1}),
        as_json({"type": "string", "minLength": 200}),
    ],
)
@pytest.mark.parametrize("forced_tokens", [True, False])
def test_a_text_that_cannot_end_in_time_ends_by_its_length(
    server: Server, grammar: Json, forced_tokens: bool
) -> None:
    response = server.generate(
        PROMPT, grammar=grammar, max_new_tokens=9, details=True, forced_tokens=forced_tokens
    )
    details = response["details"]
    assert (details["finish_reason"], details["generated_tokens"]) == ("length", 9)
    assert httpx.get(f"{server.url}/health").status_code == 200
    assert server.generate("a", grammar=as_regex("b"))["generated_text"] == "b"
