"""Reasoning: where it ends, what it holds back, and what the constraint says of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from tokenizers import Tokenizer

from tokenloom_engine.constraints.factory import ConstraintFactory
from tokenloom_engine.constraints.spec import ConstraintKind, ConstraintSpec
from tokenloom_server.reasoning import ReasoningParser, ReasoningTags, as_format
from tokenloom_server.tools.call_grammar import Format, call_grammar
from tokenloom_server.tools.formats import pick_format
from tokenloom_server.tools.tool import Tool, ToolChoice

Allows = Callable[[Format], Callable[[str], bool]]
THINK = ReasoningTags("<think>", "</think>")
SCHEMA = '{"type":"object","properties":{"a":{"type":"integer"}},"required":["a"]}'
SUM = '{"structures":[{"begin":"<s>","schema":{"type":"integer"},"end":"</s>"}],"triggers":["<s"]}'


def read(text: str, *, is_open: bool, size: int) -> tuple[str, str]:
    """Reasoning and answer of a text that comes in pieces of a size."""
    parser = ReasoningParser(THINK, is_open=is_open)
    pieces = [parser.push(text[i : i + size]) for i in range(0, len(text), size)]
    reasoning, answer = zip(*pieces, parser.flush(), strict=True)
    return "".join(reasoning), "".join(answer)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
@pytest.mark.parametrize(
    ("text", "is_open", "reasoning", "answer"),
    [
        ("<think>\nI add </think>\n\n5", False, "I add", "5"),
        ("I add\n</think>5", True, "I add", "5"),
        ("<think>twice </think>5", True, "twice", "5"),
        ("\n a < b </think>\n", True, "a < b", ""),
        ("5 </think> <think>", False, "", "5 </think> <think>"),
        ("<think>a</think>5<think>b</think>", False, "a", "5<think>b</think>"),
        ("<think>cut </th", False, "cut </th", ""),
        ("<thin", False, "", "<thin"),
        ("cut", True, "cut", ""),
        ("", True, "", ""),
    ],
)
def test_the_parser_latches(
    text: str, is_open: bool, reasoning: str, answer: str, size: int
) -> None:
    assert read(text, is_open=is_open, size=size) == (reasoning, answer)


@pytest.mark.parametrize(
    ("kind", "value", "answer", "wrong"),
    [
        ("json_schema", SCHEMA, '{"a":1}', '{"b":1}'),
        ("json_object", "", '{"b":[]}', "[]"),
        ("regex", "[0-9]+", "42", "x"),
        ("choice", '["yes","no"]', "no", "maybe"),
        ("grammar", 'start: "a" start "b" | "x"', "axb", "ab"),
        ("structural_tag", '{"format":{"type":"regex","pattern":"[ab]"}}', "a", "c"),
    ],
)
@pytest.mark.parametrize("is_open", [False, True])
def test_only_the_answer_is_constrained(
    allows: Allows, kind: ConstraintKind, value: str, answer: str, wrong: str, is_open: bool
) -> None:
    """And nothing leads back to free text."""
    accepts = allows(THINK.before(as_format(ConstraintSpec(kind, value)), is_open=is_open))
    start = "" if is_open else "<think>"
    for gap in ("", "\n", "\n\n"):
        assert accepts(f"{start}I {{add}} <5>\n</think>{gap}{answer}")
    assert accepts(answer) == (not is_open)
    assert not accepts(f"{start}I think")
    assert not accepts(f"{start}I</think>{wrong}")
    assert not accepts(f"{start}I</think><think>free text</think>{answer}")
    assert not accepts(f"{start}I</think>{answer}<think>free text")


@pytest.mark.parametrize("is_open", [False, True])
def test_free_text_with_constrained_parts_follows_reasoning(allows: Allows, is_open: bool) -> None:
    accepts = allows(
        THINK.before(as_format(ConstraintSpec("structural_tag", SUM)), is_open=is_open)
    )
    start = "" if is_open else "<think>"
    assert accepts(f"{start}I <s>x</think>so <s>5</s>.")
    assert not accepts(f"{start}I</think>so <s>x")


def test_calls_follow_reasoning_and_free_text_never_reopens_it(allows: Allows) -> None:
    format = pick_format("hermes", None)
    choice = ToolChoice(tools=(Tool(number=0, name="now"),), mode="auto")
    accepts = allows(THINK.before(call_grammar(format, choice), is_open=False))
    call = format.group([("now", "{}")])
    for answer in (call, "Hello", f"So:\n{call}"):
        assert accepts(answer) and accepts(f"<think>I <tool_call> now</think>\n\n{answer}")
    for wrong in ("<think>", "Hello <think>", "<think>I</think><think>", f"<think>{call}"):
        assert not accepts(wrong)


@pytest.fixture
def allows(tokenizer_file: Path) -> Allows:
    """A grammar's language: whether it has a text, byte by byte."""
    tokenizer = Tokenizer.from_file(str(tokenizer_file))
    factory = ConstraintFactory.for_tokenizer(
        tokenizer_file.read_text(), tokenizer.get_vocab_size(), [0]
    )

    def allows(format: Format) -> Callable[[str], bool]:
        value = msgspec.json.encode({"format": format}).decode()
        spec = ConstraintSpec("structural_tag", value)
        factory.validate(spec)
        constraint = factory.lease(spec).result().constraint

        def accepts(text: str) -> bool:
            ids = [*tokenizer.encode(text).ids, 0]
            return constraint.validate_tokens(ids) == len(ids)

        return accepts

    return allows


def test_where_reasoning_is_open() -> None:
    assert THINK.ends("<|im_start|>assistant\n<think>\n") and not THINK.ends("say <think> now")
    assert THINK.is_open_in("<think> I") and not THINK.is_open_in("<think> I </think> so")


def test_options() -> None:
    assert ReasoningTags.parse("none") is None
    assert ReasoningTags.parse("think") == THINK
    assert ReasoningTags.parse("[a], [/a]") == ReasoningTags("[a]", "[/a]")
    for wrong in ("", "<a>", "<a>,", ",<a>", "<a>,<a>", "<a>,<b>,<c>"):
        with pytest.raises(ValueError, match="START,END"):
            ReasoningTags.parse(wrong)
