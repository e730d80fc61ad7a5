"""GBNF, as llama.cpp reads it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tokenizers import Tokenizer

from tokenloom_engine.constraints.base import InvalidConstraintError
from tokenloom_engine.constraints.factory import ConstraintFactory
from tokenloom_engine.constraints.spec import ConstraintSpec


@pytest.fixture(scope="module")
def tokenizer(tokenizer_file: Path) -> Tokenizer:
    return Tokenizer.from_file(str(tokenizer_file))


@pytest.fixture(scope="module")
def factory(tokenizer_file: Path) -> ConstraintFactory:
    return ConstraintFactory.for_tokenizer(tokenizer_file.read_text(), 49152, [2])


@pytest.mark.parametrize(
    ("grammar", "matched", "others"),
    [
        (r'root ::= "pr\u00e9face"', ["préface"], [r"pr\ue9face"]),
        (r'root ::= "\u00e9\x41\xe9\U0001F600\t\"\\\[\]\-"', ['éAé😀\t"\\[]-'], []),
        (r"root ::= [\u00e0-\u00ff]", ["é", "ÿ"], ["a", "u"]),
        (r'root ::= [^\xe0-\xffa"\]\\^&~-]', ["b", "["], ["é", "a", '"', "]", "\\", "^", "&", "-"]),
        ("root ::= [a-] [-a] [a\\-z]", ["-a-", "a-z"], ["b-a", "-ab"]),
        ("root ::= [&&/] [[] [.]", ["&[.", "/[."], ["b[."]),
        ('root ::= "a" .', ["ab", "a\n"], ["a"]),
        ('root ::= start\nstart ::= "a" | "b" root', ["a", "ba"], ["b"]),
        ('start ::= "x"\nroot ::= "a"', ["a"], ["x"]),
        ('root ::= a-b a_b A-B\na-b ::= "1"\na_b ::= "2"\nA-B ::= "3"', ["123"], ["111"]),
        ('root ::= 1a\n1a ::= "x" 1a | "y"', ["xy"], ["x"]),
        ('root ::= "" | ("b" |\n "c")* # one\n\n# two\nx ::= root', ["", "bcb"], ["a"]),
        ('root ::= "a"{2} "b"{1,2} "c"{0,}?', ["aab", "aabbcc"], ["ab", "aabbb"]),
        ('root ::= "a\nb/" "::="\r\n', ["a\nb/::="], []),
        ('root ::= "a"\nroot ::= "b"', ["b"], ["a"]),
    ],
)
def test_what_a_grammar_describes(
    factory: ConstraintFactory,
    tokenizer: Tokenizer,
    grammar: str,
    matched: list[str],
    others: list[str],
) -> None:
    spec = ConstraintSpec("grammar", grammar)
    factory.validate(spec)
    translated = factory.translate(spec)
    for each in (spec, translated):
        assert [text for text in matched if not _matches(factory, tokenizer, each, text)] == []
        assert [text for text in others if _matches(factory, tokenizer, each, text)] == []


@pytest.mark.parametrize(
    ("grammar", "reason"),
    [
        ('root ::= "a', "a literal is not closed, at line 1, column 12"),
        ("root ::= [a", "a character class is not closed, at line 1, column 12"),
        ('root ::= ("a"', r"`\)` is expected here, at line 1, column 14"),
        (r'root ::= "\q"', r"an escape is one of .*, at line 1, column 11"),
        (r'root ::= "\u00"', r"an escape is one of .*, at line 1, column 11"),
        (r'root ::= "\uD83D\uDE00"', r"there is no character \\uD83D, at line 1, column 11"),
        (r'root ::= "\U00110000"', "there is no character"),
        ('a ::= "x"\nroot ::= a b', "there is no rule `b`, at line 2, column 12"),
        ('a ::= "x"', "there is no rule `root`"),
        ('root ::= "b"{,2}', "a repetition is .*, at line 1, column 13"),
        ('root ::= "a"{3,2}', "least count .*, at line 1, column 13"),
        ('root ::= "a"\n| "b"', "the name of a rule is expected here, at line 2, column 1"),
        ('root ::= "a" )', "a new line or the end is expected here, at line 1, column 14"),
        ("root ::= *", "at line 1, column 10"),
        ("root ::= [z-a]", "the last character of a range comes before its first"),
        ("root ::= []", "the character class is empty, at line 1, column 10"),
        ("root ::= [^]", "the character class is empty"),
        ("root ::= <[2]>", "tokens are not supported in GBNF"),
        ("root ::= " + "(" * 3000, "recursion"),
    ],
)
def test_what_cannot_be_read_has_a_place(
    factory: ConstraintFactory, grammar: str, reason: str
) -> None:
    spec = ConstraintSpec("grammar", grammar)
    for refuse in (factory.validate, factory.translate, lambda s: factory.compile(s).result()):
        with pytest.raises(InvalidConstraintError, match=reason):
            refuse(spec)


def _matches(
    factory: ConstraintFactory, tokenizer: Tokenizer, spec: ConstraintSpec, text: str
) -> bool:
    constraint = factory.get_constraint(factory.compile(spec).result())
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    return constraint.accept_tokens(ids) and constraint.is_accepting
