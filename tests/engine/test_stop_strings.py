"""A stop string is found wherever it ends, and only it stays."""

from __future__ import annotations

import random

import pytest

from tokenloom_engine.messages import StopScope
from tokenloom_engine.stop_strings import EVERYWHERE, StopStrings


@pytest.mark.parametrize(
    ("stop", "pieces", "expected"),
    [
        (("\n",), ["is it ", "blue?\nyes"], "is it blue?\n"),
        (("two thr",), ["one two ", "thr", "ee"], "one two thr"),
        (("abc",), ["ab", "abc", "d"], "ababc"),
        (("aab",), ["a", "a", "a", "b"], "aaab"),
        (("\n", "Carla:"), [" Carla! Hello"], None),
        (("xyz", "b"), ["ab", "xyz"], "ab"),
        (("long" * 200,), ["long" * 150, "long" * 60], "long" * 200),
        ((), ["anything"], None),
    ],
)
def test_text_ends_with_the_first_stop_string(
    stop: tuple[str, ...], pieces: list[str], expected: str | None
) -> None:
    assert _run(stop, pieces) == expected


def test_agrees_with_a_search_of_the_whole_text() -> None:
    rng = random.Random(1)
    for _ in range(2000):
        stop = tuple(
            "".join(rng.choices("ab", k=rng.randrange(1, 5))) for _ in range(rng.randrange(1, 4))
        )
        pieces = ["".join(rng.choices("abc", k=rng.randrange(0, 4))) for _ in range(12)]
        text = "".join(pieces)
        ends = [text.find(s) + len(s) for s in stop if s in text]
        assert _run(stop, pieces) == (text[: min(ends)] if ends else None)


def _run(stop: tuple[str, ...], pieces: list[str], scope: StopScope = EVERYWHERE) -> str | None:
    strings, text = StopStrings(stop, scope), ""
    for piece in pieces:
        stays = strings.cut(piece)
        if stays is not None:
            return text + piece[:stays]
        text += piece
    return None


def test_what_may_not_stop_is_passed_over() -> None:
    strings = StopStrings(("ab", "a long one"))
    assert strings.cut("xab", may_stop=False) is None
    assert strings.cut("yy") is None
    assert strings.cut("zab!") == 3


@pytest.mark.parametrize(
    ("pieces", "stop", "kept"),
    [
        (['{"a":"x. ', 'y"}'], (".",), None),
        (['{"a":"x', '"}'], ("}",), '{"a":"x"}'),
        (['{"a":"}', '","b":1}'], ("}",), '{"a":"}","b":1}'),
        (['{"a":"\\"', '}","b":2}'], ("}",), '{"a":"\\"}","b":2}'),
        (['{"a":"\\\\"', "}"], ("}",), '{"a":"\\\\"}'),
        (['{"a"', ':1,"b":2}'], ('"a":',), '{"a":'),
        (["[1,", "2,3]"], (",2",), "[1,2"),
        (['["a","b"', "]"], ('"',), '["a"'),
    ],
)
def test_in_json_what_ends_inside_a_string_does_not_count(
    pieces: list[str], stop: tuple[str, ...], kept: str | None
) -> None:
    assert _run(stop, pieces, StopScope(in_json=True)) == kept


TAGS = ("<think>", "</think>")


@pytest.mark.parametrize(
    ("scope", "text", "kept"),
    [
        (
            StopScope(aside=TAGS),
            "<think>\nI .\n</think>\n\nYes. No",
            "<think>\nI .\n</think>\n\nYes.",
        ),
        (StopScope(aside=TAGS), "\n<think>.</think>a.", "\n<think>.</think>a."),
        (StopScope(aside=TAGS), "\n\nYes. No", "\n\nYes."),
        (StopScope(aside=TAGS), "a.<think>", "a."),
        (StopScope(aside=TAGS), "a<think>.</think>", "a<think>."),
        (StopScope(aside=TAGS), "<think></think><think>.", "<think></think><think>."),
        (StopScope(aside=TAGS, is_aside_open=True), "I.</think>a\n", "I.</think>a\n"),
        (StopScope(aside=TAGS), "<table>.", "<table>."),
        (StopScope(aside=TAGS, until=("<t(",)), "<t(.\n.", None),
        (StopScope(aside=TAGS, until=("<call>",)), "<think>.<call></think> Hm<call>.", None),
        (StopScope(until=("<call>",)), "Hm. <call>", "Hm."),
        (StopScope(until=("A(", "B(")), "Hm B(.\n) and.", None),
        (StopScope(until=("",)), "Hm. ", None),
        (
            StopScope(aside=TAGS, in_json=True),
            '<think>"</think>\n{"a":"."}.',
            '<think>"</think>\n{"a":"."}.',
        ),
    ],
)
@pytest.mark.parametrize("size", [1, 3, 100])
def test_a_stop_string_counts_where_its_scope_says(
    scope: StopScope, text: str, kept: str | None, size: int
) -> None:
    pieces = [text[start : start + size] for start in range(0, len(text), size)]
    assert _run((".", "\n"), pieces, scope) == kept
