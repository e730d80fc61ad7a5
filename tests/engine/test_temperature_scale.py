"""Temperatures that grammars set: read where the library loses them, in step with the masks."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from tokenloom_engine.constraints.base import InvalidConstraintError
from tokenloom_engine.constraints.factory import ConstraintFactory, Lease
from tokenloom_engine.constraints.lark import sets_temperature
from tokenloom_engine.constraints.spec import ConstraintSpec
from tokenloom_engine.constraints.temperature_scale import MAX_LENGTH

SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}},
    "required": ["a"],
    "additionalProperties": False,
    "x-guidance": {"whitespace_flexible": False},
}
JSON = f"%json {json.dumps(SCHEMA)}"
WORD = "/[a-z]+/"
DIGITS = "/[0-9]+/"


@pytest.fixture(scope="module")
def factory(tokenizer_file: Path) -> Iterator[ConstraintFactory]:
    factory = ConstraintFactory.for_tokenizer(tokenizer_file.read_text(), 49152, [2])
    yield factory
    factory.close()


@pytest.fixture(scope="module")
def tokenizer(tokenizer_file: Path) -> Tokenizer:
    return Tokenizer.from_file(str(tokenizer_file))


@pytest.mark.parametrize(
    ("rules", "text", "expected"),
    [
        (  # that of the rule; none of the rule without; 0 of the rule with 0
            f'start: "Hi " a b c\na[temperature=0.5]: {WORD}\nb: {DIGITS}\n'
            "c[temperature=0]: /[A-Z]+/",
            ["Hi", " bob", "1", "2", "AB"],
            [0.5, 0.5, 0.5, None, None, 0.0],
        ),
        (
            f"start: a b\na[temperature=0.7]: {DIGITS}\nb[temperature=0.0]: {WORD}",
            ["1", "b", "ob"],
            [0.7, 0.7, 0.0, 0.0],
        ),
        (  # of a rule that may be empty
            'start: "Q:" a "\\n" b\na[temperature=0.5]: /[a-z]*/\n'
            "b[temperature=0.7]: X\nX: /[0-9]*/",
            ["Q", ":", "yes", "\n", "1"],
            [0.5, 0.5, 0.5, 0.5, 0.7, 0.7],
        ),
        (
            'start: a "\\n" b\na[capture, temperature=0.5, max_tokens=3]: /(?s:.*)/\nb: "!" | "?"',
            ["yes", " it", " is", "\n", "!"],
            [0.5, 0.5, 0.5, None, None],
        ),
        (
            f'start: a b\na[temperature=0.5, stop="\\n", capture="x"]: /[a-z]*/\nb: {DIGITS}',
            ["yes", "\n", "1"],
            [0.5, 0.5, None, None],
        ),
        (
            f'start: a b\na[suffix=/[.!]/, temperature=0.5]: /[a-z]*/\nb[lazy]: "x" {DIGITS}',
            ["yes", ".", "x"],
            [0.5, 0.5, None, None],
        ),
        (  # beside a nested grammar, whose lexemes may be the same grammar's
            f"start: a j\na[temperature=0.5]: {WORD}\nj: {JSON}",
            ["abc", '{"', "a", '":', "1"],
            [0.5, 0.5, None, None, None, None],
        ),
        (
            f"start: a j\na[temperature=0.5]: {WORD}\nj[temperature=1.5]: {JSON}",
            ["abc", '{"', "a"],
            [0.5, 0.5, 1.5, 1.5],
        ),
        (
            f"start: a j\na[temperature=0.5]: {WORD}\nj[temperature=0.9]: %lark {{\n"
            f"start: x y\nx: {DIGITS}\ny: {JSON}\n}}",
            ["abc", "1", '{"', "a"],
            [0.5, 0.5, 0.9, None, None],
        ),
        (  # the highest of those that may come next
            f"start: a | b | c\na[temperature=0.3]: {WORD}\nb[temperature=0.7]: {WORD}\n"
            f"// a comment [temperature=3]\nc[temperature=0.0]: {WORD}",
            ["abc"],
            [0.7, 0.7],
        ),
        (  # again, after something between
            f'start: (a ",")+ /[0-9]*/ a\na[temperature=0.3]: {WORD}',
            ["a", ",", "b", ",", "1", "c"],
            [0.3, 0.3, 0.3, 0.3, 0.3, 0.3, 0.3],
        ),
        (  # special tokens have none
            f"start: a (<|im_start|> | <[0-1]>) a\na[temperature=0.3]: {WORD}",
            ["a", "<|im_start|>"],
            [0.3, 0.3, 0.3],
        ),
        (
            f"start: a <|im_start|> (<|im_start|> | <[0]>) a\na[temperature=0.3]: {WORD}",
            ["a", "<|im_start|>"],
            [0.3, 0.3, None],
        ),
        (
            "%import common.INT\n%ignore /[ ]/\nB: /y/ | /x/\n"
            'start: INT ("," INT)~1..2 a (B{1,2} | "a".."c" ~"u") [ B ]\n'
            'a[temperature=0.4]: /[A-Z]+/\n  | "qq" B',
            ["1", ",", "2", "A", "y", "x"],
            [None, None, None, None, 0.4, None, None],
        ),
        (
            json.dumps(
                {
                    "grammars": [
                        {"lark_grammar": f"start: a @j\na[temperature=0.5]: {WORD}"},
                        {"name": "j", "json_schema": SCHEMA},
                    ]
                }
            ),
            ["abc", '{"', "a"],
            [0.5, 0.5, None, None],
        ),
    ],
)
def test_where_which_temperature_holds(
    factory: ConstraintFactory,
    tokenizer: Tokenizer,
    rules: str,
    text: list[str],
    expected: list[float | None],
) -> None:
    lease = factory.lease(ConstraintSpec("grammar", rules)).result()
    assert sets_temperature(lease.compiled.spec)
    assert _temperatures(factory, lease, _ids(tokenizer, text)) == expected


def test_a_prefix_has_no_temperature(factory: ConstraintFactory, tokenizer: Tokenizer) -> None:
    rules = f'start: "a" | "b" start | x\nx[temperature=0.4]: {DIGITS}'
    spec = ConstraintSpec("grammar", rules, prefix="The b")
    ids = _ids(tokenizer, ["The", " b", "b", "1"])
    lease = factory.lease(spec).result()
    assert _temperatures(factory, lease, ids) == [0.4] * 5, "of what follows what is forced"
    spec = ConstraintSpec("grammar", f"start: {DIGITS} x\nx[temperature=0.4]: {WORD}", prefix="No")
    lease = factory.lease(spec).result()
    assert _temperatures(factory, lease, _ids(tokenizer, ["No", "1"])) == [None] * 3


def test_it_goes_back_and_begins_anew(factory: ConstraintFactory, tokenizer: Tokenizer) -> None:
    rules = (
        f'start: a "\\n" b\na[temperature=0.5, max_tokens=9]: {WORD}\nb[temperature=0.0]: {DIGITS}'
    )
    lease = factory.lease(ConstraintSpec("grammar", rules)).result()
    ids = _ids(tokenizer, ["abc", "\n", "1"])
    assert _temperatures(factory, lease, ids) == [0.5, 0.5, 0.0, 0.0]
    constraint = lease.constraint
    constraint.rollback(2)
    assert _temperatures(factory, lease, []) == [0.5]
    fork = lease._replace(constraint=constraint.fork())
    assert _temperatures(factory, lease, ids[1:]) == [0.5, 0.0, 0.0]
    assert _temperatures(factory, fork, ids[1:]) == [0.5, 0.0, 0.0]
    factory.return_constraint(lease.compiled, constraint)
    again = factory.lease(lease.compiled.spec).result()
    assert again.constraint is constraint
    assert again.constraint.temperature == 0.5
    assert _temperatures(factory, again, ids) == [0.5, 0.5, 0.0, 0.0]


@pytest.mark.parametrize(
    "rules",
    [
        f'start: (a b "," c)+\na[temperature=0.5]: {WORD}\nb: /[0-9]*/\nc[stop="."]: /[a-z ]*/',
        f'start: (x | j)+ "!"\nx[temperature=0.5, max_tokens=3]: {WORD}\nj: {JSON}',
        "%ignore /[ \\n]+/\nstart: e\n"
        'e: t (("+" | "-") t)*\nt: n | "(" e ")"\nn[temperature=1]: /[0-9]+/',
        'start: (k "=" V "\\n")~3\nk[temperature=0.1]: /[a-z]{1,8}/\nV: ~/.*x.*/ & /[^\\n]{1,9}/',
        'start: q | q "or" start\nq[temperature=0.2]: "a" | "b"i | "c".."f"\n',
    ],
)
def test_it_follows_wherever_the_grammar_leads(factory: ConstraintFactory, rules: str) -> None:
    choose = random.Random(5)
    for _ in range(3):
        lease = factory.lease(ConstraintSpec("grammar", rules)).result()
        for _ in range(30):
            (mask,) = factory.start_filling([(lease.compiled, lease.constraint)])
            assert mask.filled.result() is None
            assert lease.constraint.error is None
            bits = np.unpackbits(mask.allowed.view(np.uint8), bitorder="little")
            if lease.constraint.is_terminated:
                break
            allowed = [int(id) for id in np.flatnonzero(bits) if id != 2]
            assert lease.constraint.accept_tokens([choose.choice(allowed)])


@pytest.mark.parametrize(
    ("rules", "reason"),
    [
        ("start: a\na[temperature=-1]: /x|y/", "must be 0 or a positive number. Given: -1"),
        ("start: a\na[temperature=1e300]: /x|y/", "Given: 1e300"),
        ("start: a\na[temperature=1e-40]: /x|y/", "Given: 1e-40"),
        ("start: j\nj: %lark {\nstart: a\na[temperature=1]: /x+/\n}", "inside another"),
        (
            '{"grammars": [{"lark_grammar": "start: @a"}, '
            '{"name": "a", "lark_grammar": "start: b\\nb[\\ttemperature=1]: /x+/"}]}',
            "inside another",
        ),
        ("start: a\na[temperature=1]: /x+/" + " " * MAX_LENGTH, "too large"),
        (
            "start: a\na[temperature=1]: /x+/ | "
            + " | ".join(f'"{i}" /[a-z]*{i}x?/' for i in range(800)),
            "too large",
        ),
        ("start: a b\na[temperature=1]: b\nb: /x+/", "unknown name"),
    ],
)
def test_what_cannot_be_followed_is_refused(
    factory: ConstraintFactory, rules: str, reason: str
) -> None:
    spec = ConstraintSpec("grammar", rules)
    with pytest.raises(InvalidConstraintError, match=reason):
        factory.validate(spec)
    with pytest.raises(InvalidConstraintError, match=reason):
        factory.compile(spec).result()


@pytest.mark.parametrize(
    ("spec", "sets"),
    [
        (ConstraintSpec("grammar", "start: a\na[temperature = 1]: /x+/"), True),
        (
            ConstraintSpec("grammar", '{"grammars": [{"lark_grammar": "a[\\u0074emperature=1]"}]}'),
            True,
        ),
        (ConstraintSpec("grammar", 'start: "temperature" /[0-9]+/'), False),
        (
            ConstraintSpec(
                "structural_tag",
                '{"format": {"type": "grammar", "grammar": "start: a\\na[temperature=1]: /x/"}}',
            ),
            True,
        ),
        (
            ConstraintSpec(
                "structural_tag",
                '{"format": {"json_schema": {"description": "temperature = heat"}}}',
            ),
            False,
        ),
        (ConstraintSpec("regex", "temperature=[0-9]"), False),
        (
            ConstraintSpec(
                "json_schema", '{"properties": {"temperature": {"const": "temperature="}}}'
            ),
            False,
        ),
    ],
)
def test_which_specs_set_temperatures(spec: ConstraintSpec, sets: bool) -> None:
    assert sets_temperature(spec) == sets


def test_grammars_without_temperatures_have_none(
    factory: ConstraintFactory, tokenizer: Tokenizer
) -> None:
    rules = 'start: "temperature=" /[0-9]+/'  # words in a text
    lease = factory.lease(ConstraintSpec("grammar", rules)).result()
    ids = tokenizer.encode("temperature=1").ids
    assert _temperatures(factory, lease, ids) == [None] * (len(ids) + 1)


def _ids(tokenizer: Tokenizer, tokens: list[str]) -> list[int]:
    ids = [tokenizer.encode(token, add_special_tokens=False).ids for token in tokens]
    assert all(len(of_token) == 1 for of_token in ids), "each is one token"
    return [of_token[0] for of_token in ids]


def _temperatures(factory: ConstraintFactory, lease: Lease, ids: list[int]) -> list[float | None]:
    """That before each of these tokens, and after the last."""
    temperatures = []
    for end in range(len(ids) + 1):
        if lease.constraint.is_terminated:
            break
        (mask,) = factory.start_filling([(lease.compiled, lease.constraint)])
        assert mask.filled.result() is None
        assert lease.constraint.error is None
        temperatures.append(lease.constraint.temperature)
        if end < len(ids):
            assert lease.constraint.accept_tokens([ids[end]])
    return temperatures
