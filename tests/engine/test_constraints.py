"""Constraints: validated, compiled once, pooled, never shared; masks that agree with the text."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from tests.engine.clocks import manual_latency
from tokenloom_engine.constraints.base import Constraint, InvalidConstraintError
from tokenloom_engine.constraints.factory import ConstraintFactory
from tokenloom_engine.constraints.spec import ConstraintSpec

VOCAB_SIZE = 49152
SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
        "required": ["name", "age"],
    }
)
ORDERED = '{"type": "object", "properties": {"b": {"type": "integer"}, "a": {"type": "integer"}}}'
ENDLESS = json.dumps(
    {"type": "object", "properties": {"next": {"$ref": "#"}}, "required": ["next"]}
)


@pytest.fixture(scope="module")
def tokenizer(tokenizer_file: Path) -> Tokenizer:
    return Tokenizer.from_file(str(tokenizer_file))


@pytest.fixture(scope="module")
def factory(tokenizer_file: Path) -> ConstraintFactory:
    return ConstraintFactory.for_tokenizer(
        tokenizer_file.read_text(), VOCAB_SIZE, [2], latency=manual_latency()
    )


def test_regex_allows_its_language_alone(factory: ConstraintFactory, tokenizer: Tokenizer) -> None:
    constraint = _constraint(factory, ConstraintSpec("regex", "[ab]+"))
    allowed = _allowed(factory, constraint)
    assert {tokenizer.token_to_id("a"), tokenizer.token_to_id("b")} <= allowed
    assert all(set(tokenizer.decode([id])) <= {"a", "b"} for id in allowed)
    assert 2 not in allowed, "nothing is not in the language"
    assert constraint.accept_tokens(tokenizer.encode("a").ids)
    assert 2 in _allowed(factory, constraint)


def test_forced_tokens_are_the_tokenizers_own(
    factory: ConstraintFactory, tokenizer: Tokenizer
) -> None:
    constraint = _constraint(factory, ConstraintSpec("json_schema", SCHEMA))
    forced = constraint.forced_tokens()
    text = tokenizer.decode(forced)
    assert '{"name":"'.startswith(text) and text.startswith('{"name')
    assert tokenizer.encode('{"name":"', add_special_tokens=False).ids[: len(forced)] == forced
    assert constraint.accept_tokens(forced)


def test_a_complete_text_terminates_without_eos(
    factory: ConstraintFactory, tokenizer: Tokenizer
) -> None:
    constraint = _constraint(factory, ConstraintSpec("regex", "yes|no"))
    assert not constraint.is_terminated
    assert constraint.accept_tokens(tokenizer.encode("yes").ids)
    assert constraint.is_terminated


def test_special_tokens_are_no_text(factory: ConstraintFactory) -> None:
    constraint = _constraint(factory, ConstraintSpec("regex", r"(.|\n)*"))
    assert _allowed(factory, constraint) & set(range(17)) == {2}


def test_an_error_is_sticky_and_the_constraint_is_not_pooled(
    factory: ConstraintFactory, tokenizer: Tokenizer
) -> None:
    spec = ConstraintSpec("regex", "abc+")
    compiled = factory.compile(spec).result()
    constraint = factory.get_constraint(compiled)
    assert not constraint.accept_tokens(tokenizer.encode("zzz").ids)
    assert constraint.error
    factory.return_constraint(compiled, constraint)
    assert factory.get_constraint(compiled) is not constraint


def test_returned_constraints_start_anew(factory: ConstraintFactory, tokenizer: Tokenizer) -> None:
    compiled = factory.compile(ConstraintSpec("regex", "[xy]{3}")).result()
    first = factory.get_constraint(compiled)
    second = factory.get_constraint(compiled)
    assert first is not second, "never shared"
    before = _allowed(factory, first)
    assert first.accept_tokens(tokenizer.encode("x").ids)
    assert _allowed(factory, second) == before, "no state in common"
    factory.return_constraint(compiled, first)
    again = factory.get_constraint(compiled)
    assert again is first
    assert _allowed(factory, again) == before


def test_compiles_once(factory: ConstraintFactory) -> None:
    spec = ConstraintSpec("choice", json.dumps(["red", "green"]))
    factory.take_compile_seconds()
    compiled = factory.compile(spec).result()
    assert factory.compile(ConstraintSpec("choice", spec.value)).result() is compiled
    assert len(factory.take_compile_seconds()) == 1
    assert factory.take_compile_seconds() == []


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        (ConstraintSpec("json_schema", '{"type": "strng"}'), "strng"),
        (ConstraintSpec("json_schema", "{"), None),
        (ConstraintSpec("regex", "a("), None),
        (ConstraintSpec("regex", r"(?=a)b"), "at character 1"),
        (ConstraintSpec("regex", "\\"), "within an escape, at character 1"),
        (ConstraintSpec("regex", "/a\\\\\\"), "within an escape, at character 5"),
        (ConstraintSpec("regex", "/[z-a]"), "invalid character class range.*, at character 3"),
        (ConstraintSpec("regex", "a" * 3000 + "("), "unclosed group, at character 3001"),
        (ConstraintSpec("regex", "a\n("), "unclosed group, in line 2"),
        (ConstraintSpec("grammar", "start: A\nA: /ab(/"), r"at 2\(4\): .* group, at character 3"),
        (ConstraintSpec("grammar", 'root ::= "a" ('), None),
        (ConstraintSpec("grammar", "start: missing"), "missing"),
        (ConstraintSpec("grammar", 'root ::= root "a"'), "no text matches it"),
        (ConstraintSpec("json_schema", '{"properties":' * 300 + "{}" + "}" * 300), None),
        (ConstraintSpec("regex", "a" * 1_000_001), "1000001"),
        (ConstraintSpec("choice", "[]"), "at least one"),
        (ConstraintSpec("choice", '["a", 1]'), "strings"),
        (ConstraintSpec("choice", '"a"'), "at least one"),
        (ConstraintSpec("json_schema", '{"uniqueItems": true, "type": "array"}'), "uniqueItems"),
        (ConstraintSpec("json_object", whitespace_pattern="("), None),
    ],
)
def test_a_bad_spec_is_refused_with_a_reason(
    factory: ConstraintFactory, spec: ConstraintSpec, reason: str | None
) -> None:
    with pytest.raises(InvalidConstraintError, match=reason) as raised:
        factory.validate(spec)
    assert str(raised.value)
    with pytest.raises(InvalidConstraintError):
        factory.compile(spec).result()


@pytest.mark.parametrize(
    "spec",
    [
        ConstraintSpec("json_schema", SCHEMA),
        ConstraintSpec("json_object"),
        ConstraintSpec("regex", r"\d{3}-\d{4}"),
        ConstraintSpec("choice", '["a", "b"]'),
        ConstraintSpec("grammar", 'root ::= "a" | "b" root'),
        ConstraintSpec("grammar", 'start: "a" | "b" start'),
        ConstraintSpec("grammar", 'start: "::="'),
        ConstraintSpec("grammar", "%llguidance {}\nstart: /[a-z]+/"),
        ConstraintSpec("grammar", '{"grammars": [{"lark_grammar": "start: /a/"}]}'),
    ],
)
def test_good_specs_are_accepted(factory: ConstraintFactory, spec: ConstraintSpec) -> None:
    factory.validate(spec)
    assert _allowed(factory, _constraint(factory, spec))


def test_a_dead_end_that_every_text_comes_to_is_refused(factory: ConstraintFactory) -> None:
    dead = "A\nA: /a/ & /b/"
    with pytest.raises(InvalidConstraintError, match="no text matches it"):
        factory.validate(ConstraintSpec("grammar", f'start: "abc" {dead}'))
    assert factory.validate(ConstraintSpec("grammar", f'start: "x" | "y" {dead}')) == []


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("/a\\/[/]", "/a//"),
        ("a\\\nb\nc", "a\nb\nc"),
        ("(?x) a # not b\n c", "ac"),
        ("", ""),
    ],
)
def test_a_regex_is_read_as_it_stands(
    factory: ConstraintFactory, tokenizer: Tokenizer, pattern: str, text: str
) -> None:
    tag = {"format": {"type": "sequence", "elements": [{"type": "regex", "pattern": pattern}]}}
    for spec in (
        ConstraintSpec("regex", pattern),
        ConstraintSpec("structural_tag", json.dumps(tag)),
    ):
        constraint = _constraint(factory, spec)
        assert constraint.accept_tokens(tokenizer.encode(text, add_special_tokens=False).ids)
        assert constraint.is_accepting


def test_a_lenient_schema_says_what_it_leaves_out(factory: ConstraintFactory) -> None:
    schema = '{"type": "array", "items": {"type": "integer"}, "uniqueItems": true}'
    (warning,) = factory.validate(ConstraintSpec("json_schema", schema, lenient=True))
    assert "uniqueItems" in warning
    assert factory.validate(ConstraintSpec("json_schema", SCHEMA, lenient=True)) == []


@pytest.mark.parametrize(
    ("pattern", "text", "is_allowed"),
    [
        (None, '{"a":1}', True),
        (None, '{"a": 1}', False),
        ("[ ]?", '{"a": 1}', True),
        ("[ ]?", '{"a":1}', True),
        ("[ ]?", '{"a":  1}', False),
    ],
)
def test_white_space_is_what_the_pattern_says(
    factory: ConstraintFactory,
    tokenizer: Tokenizer,
    pattern: str | None,
    text: str,
    is_allowed: bool,
) -> None:
    schema = '{"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"]}'
    spec = ConstraintSpec("json_schema", schema, whitespace_pattern=pattern)
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    assert _constraint(factory, spec).accept_tokens(ids) == is_allowed


@pytest.mark.parametrize(
    "spec",
    [
        ConstraintSpec("json_schema", ENDLESS),
        ConstraintSpec("grammar", 'start: "a" "b" start'),
    ],
)
def test_what_is_forced_without_end_can_be_followed_for_long(
    factory: ConstraintFactory, tokenizer: Tokenizer, spec: ConstraintSpec
) -> None:
    ahead: list[int] = []
    for most in (64, 1):  # many at a time, or each alone: they are the same
        constraint = _constraint(factory, spec)
        ids: list[int] = []
        while len(ids) < 64 * most:
            assert _allowed(factory, constraint)
            chosen = constraint.forced_tokens()[:most] or tokenizer.encode('"x"').ids[:1]
            assert constraint.accept_tokens(chosen)
            assert constraint.error is None and not constraint.is_terminated
            ids += chosen
        ahead = ahead or ids
        assert ids == ahead[: len(ids)]
        constraint.rollback(len(ids) - 7)
        assert constraint.validate_tokens(ids[7:20]) == 13
        constraint.reset()
        assert constraint.validate_tokens(ids[:20]) == 20


@pytest.mark.parametrize(
    ("options", "allowed", "refused"),
    [
        ({}, ['{"a":1,"b":2}'], ['{"a": 1, "b": 2}']),
        (
            {"item_separator": ", ", "key_separator": ": "},
            ['{"a": 1, "b": 2}'],
            ['{"a":1,"b":2}', '{"a" : 1, "b" : 2}'],
        ),
        (
            {"whitespace_flexible": True},
            ['{"a":1,"b":2}', '{ "a" :1 ,\n "b":2}'],
            ['{"a":1;"b":2}'],
        ),
        ({"whitespace_pattern": "[ ]?"}, ['{"a": 1 ,"b":2}'], ['{"a":  1,"b":2}']),
    ],
)
def test_a_schemas_own_options_hold(
    factory: ConstraintFactory,
    tokenizer: Tokenizer,
    options: dict[str, object],
    allowed: list[str],
    refused: list[str],
) -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"const": 1}, "b": {"const": 2}},
        "required": ["a", "b"],
        "additionalProperties": False,
        "x-guidance": options,
    }
    spec = ConstraintSpec("json_schema", json.dumps(schema))
    asked = ConstraintSpec("json_schema", json.dumps(schema), whitespace_pattern="[ ]{2}")
    assert factory.validate(spec) == []
    for text in [*allowed, *refused]:
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        assert _constraint(factory, spec).accept_tokens(ids) == (text in allowed)
    if "item_separator" not in options:
        ids = tokenizer.encode('{  "a"  :  1', add_special_tokens=False).ids
        assert _constraint(factory, asked).accept_tokens(ids), "what the request says outranks them"


def test_one_of_is_any_of_for_who_says_so(factory: ConstraintFactory) -> None:
    schema = {"oneOf": [{"type": "integer"}, {"type": "number"}]}
    with pytest.raises(InvalidConstraintError, match="oneOf"):
        factory.validate(ConstraintSpec("json_schema", json.dumps(schema)))
    coerced = {**schema, "x-guidance": {"coerce_one_of": True}}
    (warning,) = factory.validate(ConstraintSpec("json_schema", json.dumps(coerced)))
    assert "oneOf" in warning


@pytest.mark.parametrize("at", ["top", "inside"])
def test_no_schema_is_lenient_of_its_own(factory: ConstraintFactory, at: str) -> None:
    schema: dict[str, object] = {
        "type": "array",
        "uniqueItems": True,
        "x-guidance": {"lenient": True},
    }
    if at == "inside":
        schema = {"type": "object", "properties": {"a": schema}}
    with pytest.raises(InvalidConstraintError, match="uniqueItems"):
        factory.validate(ConstraintSpec("json_schema", json.dumps(schema)))
    with pytest.raises(InvalidConstraintError, match="uniqueItems"):
        factory.compile(ConstraintSpec("json_schema", json.dumps(schema))).result()
    (warning,) = factory.validate(ConstraintSpec("json_schema", json.dumps(schema), lenient=True))
    assert "uniqueItems" in warning


def test_a_lenient_part_of_a_grammar_warns(factory: ConstraintFactory) -> None:
    """There is no other way to say it, so it is no request's own wish that it would outrank."""
    schema = {"type": "array", "uniqueItems": True, "x-guidance": {"lenient": True}}
    (warning,) = factory.validate(ConstraintSpec("grammar", f"start: %json {json.dumps(schema)}"))
    assert "uniqueItems" in warning


def test_limits_of_tokens_do_not_spoil_the_pool(
    factory: ConstraintFactory, tokenizer: Tokenizer
) -> None:
    """The library cannot go back where `max_tokens` or `stop` is set."""
    spec = ConstraintSpec("grammar", 'start: a "!"\na[max_tokens=3, stop="."]: /[a-z]*/')
    for _ in range(3):
        lease = factory.lease(spec).result()
        assert lease.constraint.accept_tokens(tokenizer.encode("yes").ids)
        factory.return_constraint(lease.compiled, lease.constraint)


@pytest.mark.parametrize(
    ("schema", "pattern", "allowed", "refused"),
    [
        (ORDERED, None, '{"b":1,"a":2,"c":3}', '{"a":2,"b":1}'),
        ('{"type": "integer"}', None, "2", "2.0"),
        ('{"type": "integer"}', "[ ]?", "2", " 2"),
        ('{"type": "array"}', "[ ]?", "[ 1 ]", " [ 1 ]"),
        ('{"type": "array"}', "[ ]?", "[ ]", "[ ] "),
        ('{"type": "array"}', r"\s?", "[\u00a01]", "[  1]"),
        ('{"enum": ["é"]}', None, '"é"', r'"\u00e9"'),
    ],
)
def test_the_known_limits_of_json(
    factory: ConstraintFactory,
    tokenizer: Tokenizer,
    schema: str,
    pattern: str | None,
    allowed: str,
    refused: str,
) -> None:
    spec = ConstraintSpec("json_schema", schema, whitespace_pattern=pattern)
    for text in (allowed, refused):
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        assert _constraint(factory, spec).accept_tokens(ids) == (text == allowed)


def _constraint(factory: ConstraintFactory, spec: ConstraintSpec) -> Constraint:
    return factory.get_constraint(factory.compile(spec).result())


def _allowed(factory: ConstraintFactory, constraint: Constraint) -> set[int]:
    of_same_backend = factory.compile(ConstraintSpec("regex", "any")).result()
    (mask,) = factory.start_filling([(of_same_backend, constraint)])
    assert mask.filled.result() is None
    bits = np.unpackbits(mask.allowed.view(np.uint8), bitorder="little")
    return set(np.flatnonzero(bits).tolist())
