"""Captures of named rules: the texts that they matched, and no others."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from tests.engine.clocks import manual_latency
from tokenloom_engine.constraints.base import Captures
from tokenloom_engine.constraints.captures import CaptureReader
from tokenloom_engine.constraints.factory import ConstraintFactory
from tokenloom_engine.constraints.spec import ConstraintSpec

EOS = 2
WORD = "/[a-z]+/"


@pytest.fixture(scope="module")
def factory(tokenizer_file: Path) -> Iterator[ConstraintFactory]:
    factory = ConstraintFactory.for_tokenizer(
        tokenizer_file.read_text(), 49152, [EOS], latency=manual_latency()
    )
    yield factory
    factory.close()


@pytest.fixture(scope="module")
def tokenizer(tokenizer_file: Path) -> Tokenizer:
    return Tokenizer.from_file(str(tokenizer_file))


@pytest.mark.parametrize(
    ("grammar", "text", "expected"),
    [
        (f'start: "Hi " name "!"\nname[capture]: {WORD}', "Hi bob!", {"name": "bob"}),
        (f'start: "Hi " x "!"\nx[capture="name"]: {WORD}', "Hi bob!", {"name": "bob"}),
        (
            'start: both\nboth[capture]: a "," b\na[capture]: /[0-9]+/\nb[capture]: /[0-9]/',
            "12,3",
            {"a": "12", "b": "3", "both": "12,3"},
        ),
        # several times: the last one, or all
        (f'start: (x " ")+\nx[capture]: {WORD}', "ab cd ef ", {"x": "ef"}),
        (f'start: (x " ")+\nx[capture]: {WORD}', "ab cd ab ", {"x": "ab"}),
        (
            f'start: (i " ")+\ni[capture="__LIST_APPEND:x"]: {WORD}',
            "ab ab cd ",
            {"x": ["ab", "ab", "cd"]},
        ),
        (
            f'start: (i " ")+ n\ni[capture="__LIST_APPEND:x"]: {WORD}\nn[capture="x"]: /[0-9]/',
            "ab cd 1",
            {"x": "1"},
        ),
        (
            f'start: n (i " ")+\ni[capture="__LIST_APPEND:x"]: {WORD}\nn[capture="x"]: /[0-9]/',
            "1ab cd ",
            {"x": ["ab", "cd"]},
        ),
        # what the rule could have matched and did not
        ('start: (x " ")+\nx[capture]: /[a-z]*/', "ab cd ", {"x": "cd"}),
        (
            'start: (i " ")+\ni[capture="__LIST_APPEND:x"]: /[a-z]*/',
            "ab cd ",
            {"x": ["ab", "cd"]},
        ),
        ('start: "<" x ">"\nx[capture]: /[a-z]*/', "<>", {"x": ""}),
        ('start: "<" x ">"\nx[capture]: /[a-z]*/', "<ab", {}),
        # nothing is what a lazy rule did match
        (
            'start: (i " ")+\ni[capture="__LIST_APPEND:x", suffix=","]: /[a-z]*/',
            "ab, , cd, ",
            {"x": ["ab", "", "cd"]},
        ),
        (
            'start: x "!"\nx[capture, stop=/[.,]/, stop_capture="end"]: /[a-z]*/',
            "ab.!",
            {"x": "ab", "end": "."},
        ),
        # so far
        (f'start: "Hi " name "!"\nname[capture]: {WORD}', "Hi bob", {}),
        (f'start: a "," b "!"\na[capture]: {WORD}\nb[capture]: {WORD}', "xy,ab", {"a": "xy"}),
        (f"start: name\nname[capture]: {WORD}", "bob", {"name": "bob"}),
        ("start: x\nx[capture, max_tokens=2]: /(?s:.*)/", "one two", {"x": "one two"}),
        ('start: x "a"\nx[capture]: /[^a]+/', "héé 😀a", {"x": "héé 😀"}),
        (
            'start: x\nx[capture]: %json {"type": "array", "items": {"type": "integer"}}',
            "[1,2]",
            {"x": "[1,2]"},
        ),
        (
            json.dumps(
                {
                    "grammars": [
                        {"lark_grammar": f"start: @a\n// [capture]\n// {WORD}"},
                        {"name": "a", "lark_grammar": f'start: x "."\nx[capture]: {WORD}'},
                    ]
                }
            ),
            "bob.",
            {"x": "bob"},
        ),
        ('start: "capture" /[0-9]/', "capture1", {}),
    ],
)
def test_captures(
    factory: ConstraintFactory,
    tokenizer: Tokenizer,
    grammar: str,
    text: str,
    expected: Captures,
) -> None:
    lease = factory.lease(ConstraintSpec("grammar", grammar)).result()
    assert lease.constraint.accept_tokens(_ids(tokenizer, text))
    assert lease.constraint.captures() == expected
    assert lease.constraint.captures() == expected, "the constraint did not move"
    assert lease.constraint.error is None


def test_the_end_may_be_said(factory: ConstraintFactory, tokenizer: Tokenizer) -> None:
    lease = factory.lease(ConstraintSpec("grammar", f"start: x\nx[capture]: {WORD}")).result()
    assert lease.constraint.accept_tokens([*_ids(tokenizer, "bob"), EOS])
    assert lease.constraint.captures() == {"x": "bob"}


def test_bytes_that_are_no_text(factory: ConstraintFactory, tokenizer: Tokenizer) -> None:
    grammar = (
        '%llguidance {"allow_invalid_utf8": true}\n'
        "start: x y\nx[capture, max_tokens=1]: /.+/\ny: /.+/"
    )
    first, *_ = _ids(tokenizer, "😀")
    lease = factory.lease(ConstraintSpec("grammar", grammar)).result()
    assert lease.constraint.accept_tokens([first, *_ids(tokenizer, "a")])
    assert lease.constraint.captures() == {"x": "\ufffd"}


def test_nothing_is_left_of_what_was_taken_back_or_of_others(
    factory: ConstraintFactory, tokenizer: Tokenizer
) -> None:
    spec = ConstraintSpec(
        "grammar", f'start: "Hi " x "!" y\nx[capture]: {WORD}\ny[capture]: {WORD}'
    )
    lease = factory.lease(spec).result()
    constraint = lease.constraint
    ids = _ids(tokenizer, "Hi bob!ab")
    assert constraint.accept_tokens(ids)
    assert constraint.captures() == {"x": "bob", "y": "ab"}
    constraint.rollback(len(ids) - len(_ids(tokenizer, "Hi bob")))
    assert constraint.captures() == {}
    assert constraint.accept_tokens(_ids(tokenizer, "!"))
    assert constraint.captures() == {"x": "bob"}
    assert constraint.fork().captures() == {"x": "bob"}
    factory.return_constraint(lease.compiled, constraint)
    again = factory.lease(spec).result().constraint
    assert again is constraint
    assert again.captures() == {}
    assert again.accept_tokens(_ids(tokenizer, "Hi bob!"))
    assert again.captures() == {"x": "bob"}


def test_what_is_no_grammar_has_no_captures() -> None:
    for grammar in ("{", '{"grammars": 1}', 'start: "', "start[capture", "x" * 100_000):
        assert CaptureReader(grammar).read([("x", b"a")], is_whole=True) == {"x": "a"}


def _ids(tokenizer: Tokenizer, text: str) -> list[int]:
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
    return ids
