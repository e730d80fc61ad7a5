"""What a grammar may cost: each limit of ConstraintConfig has its effect, and says its name."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from tokenloom_engine.constraints.base import Constraint, InvalidConstraintError
from tokenloom_engine.constraints.config import ConstraintConfig
from tokenloom_engine.constraints.factory import ConstraintFactory
from tokenloom_engine.constraints.spec import ConstraintKind, ConstraintSpec

AMBIGUOUS = ConstraintSpec("grammar", 'start: e\ne: e e | "a"')

MakeFactory = Callable[[ConstraintConfig], ConstraintFactory]


@pytest.fixture(scope="module")
def make_factory(tokenizer_file: Path) -> MakeFactory:
    text = tokenizer_file.read_text()
    return lambda config: ConstraintFactory.for_tokenizer(text, 49152, [2], config)


def test_the_size_of_a_text(make_factory: MakeFactory) -> None:
    factory = make_factory(ConstraintConfig(max_bytes=20))
    factory.validate(ConstraintSpec("regex", "a" * 20))
    spec = ConstraintSpec("regex", "ä" * 11)
    for refused in (lambda: factory.validate(spec), lambda: factory.compile(spec).result()):
        with pytest.raises(InvalidConstraintError) as raised:
            refused()
        reason = "it has 22 bytes, more than the 20 of --max-grammar-bytes"
        assert str(raised.value) == reason


@pytest.mark.parametrize(
    ("kind", "nested"),
    [
        ("json_schema", lambda depth: '{"items":' * (depth - 1) + "{}" + "}" * (depth - 1)),
        ("json_schema", lambda depth: '{"items":' * depth),
        ("choice", lambda depth: "[" * depth),
        ("structural_tag", lambda depth: '{"format":' * depth),
    ],
    ids=["schema", "open schema", "choice", "structural tag"],
)
def test_the_nesting_of_json(
    make_factory: MakeFactory, kind: ConstraintKind, nested: Callable[[int], str]
) -> None:
    factory = make_factory(ConstraintConfig(max_depth=12))
    for depth in (13, 1000, 10_000, 100_000):
        spec = ConstraintSpec(kind, nested(depth))
        start = time.thread_time()
        with pytest.raises(InvalidConstraintError) as raised:
            factory.validate(spec)
        assert str(raised.value) == (
            f"it is nested {depth} deep, more than the 12 of --max-grammar-depth"
        )
        assert time.thread_time() - start < 0.5
        assert factory.find_fault(spec, str(raised.value)) is None
    if kind == "json_schema" and "{}" in nested(2):
        factory.validate(ConstraintSpec(kind, nested(12)))


def test_brackets_in_strings_are_not_nesting(make_factory: MakeFactory) -> None:
    factory = make_factory(ConstraintConfig(max_depth=3))
    choice = ConstraintSpec("choice", json.dumps(["[[[[[[", '\\"{{{{{{']))
    assert factory.validate(choice) == []
    assert factory.validate(ConstraintSpec("regex", r"\[\[\[\[\[\[" + "((((a))))")) == []


def test_the_items_of_a_step(make_factory: MakeFactory) -> None:
    words = ConstraintSpec("grammar", "start: " + " | ".join(f'"{c}" "x"' for c in "abcdefghij"))
    make_factory(ConstraintConfig()).validate(words)
    with pytest.raises(InvalidConstraintError, match="Too many items"):
        make_factory(ConstraintConfig(max_items=5)).validate(words)


def test_the_items_in_a_row(make_factory: MakeFactory, tokenizer_file: Path) -> None:
    (a,) = Tokenizer.from_file(str(tokenizer_file)).encode("a").ids
    lengths = [
        _length_until_error(make_factory(ConstraintConfig(max_items_in_row=most)), a)
        for most in (50, 150)
    ]
    assert 0 < lengths[0] < lengths[1] < 400


def _length_until_error(factory: ConstraintFactory, token: int) -> int:
    """How many tokens of an ambiguous text a constraint takes until it gives up."""
    compiled = factory.compile(AMBIGUOUS).result()
    constraint: Constraint = factory.get_constraint(compiled)
    for length in range(400):
        (mask,) = factory.start_filling([(compiled, constraint)])
        mask.filled.result()
        if constraint.error is not None or not constraint.accept_tokens([token]):
            return length
    return 400
