"""The text of a choice: held back where it may end, cut where it did."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tokenloom_engine.messages import Finish, FinishReason, SequenceOutput, StoppingParams, Token
from tokenloom_engine.stop_strings import StopStrings
from tokenloom_server.api.openai.choice_text import ChoiceText

EOS = 2


def choice(*stop: str, ids: tuple[int, ...] = (), **options: Any) -> ChoiceText:  # noqa: ANN401
    stopping = StoppingParams(max_new_tokens=100, stop=stop, stop_token_ids=ids)
    given = {"keeps_stop": False, "skips_special_tokens": True, **options}
    return ChoiceText(stopping, frozenset({EOS}), **given)


def output(*tokens: Token | str, end: FinishReason | None = None) -> SequenceOutput:
    whole = [Token(9, token) if isinstance(token, str) else token for token in tokens]
    finish = None if end is None else Finish(end, "", len(whole), 0)
    return SequenceOutput(0, whole, finish=finish)


def test_text_that_may_be_a_stop_string_waits() -> None:
    text = choice("two thr")
    assert text.push(output("one ")).text == "one "
    piece = text.push(output("two "))
    assert piece.text == ""
    assert piece.tokens == []
    assert piece.ids == [9]
    piece = text.push(output("things"))
    assert piece.text == "two things"
    assert [token.text for token in piece.tokens] == ["two ", "things"]


def test_a_stop_string_is_cut_with_its_tokens() -> None:
    text = choice("two thr")
    assert text.push(output("one", " two")).text == "one "
    piece = text.push(output(" thr", end="stop_sequence"))
    assert piece.text == ""
    assert piece.tokens == []
    assert text.stop_reason == "two thr"
    kept = choice("two thr", keeps_stop=True)
    assert kept.push(output("one", " two", " thr", end="stop_sequence")).text == "one two thr"


def test_what_waits_comes_at_the_end() -> None:
    text = choice("two thr")
    assert text.push(output("one", " tw")).text == "one "
    piece = text.push(output("o", end="length"))
    assert piece.text == "two"
    assert text.stop_reason is None


def test_ends_and_special_tokens() -> None:
    special, end = Token(5, "<mark>", special=True), Token(EOS, "<eos>", special=True)
    assert choice().push(output("a", special, end, end="eos_token")).text == "a"
    shown = choice(skips_special_tokens=False).push(output("a", special, end, end="eos_token"))
    assert shown.text == "a<mark>"
    assert [token.id for token in shown.tokens] == [9, 5]
    assert shown.ids == [9, 5, EOS]
    kept = choice(skips_special_tokens=False, keeps_stop=True)
    assert kept.push(output("a", end, end="eos_token")).text == "a<eos>"
    named = choice(ids=(7,))
    assert named.push(output("a", Token(7, " x"), end="eos_token")).text == "a"
    assert named.stop_reason == 7
    by_grammar = choice()
    assert by_grammar.push(output("a", "}", end="eos_token")).text == "a}"
    assert by_grammar.stop_reason is None
    by_name = choice("<mark>")
    assert by_name.push(output("a", special, end="stop_sequence")).text == "a"


@pytest.mark.parametrize("seed", range(20))
def test_pieces_are_what_a_cut_of_the_whole_is(seed: int) -> None:
    """Random texts of two letters, as the engine would end them."""
    chance = random.Random(seed)
    for _ in range(50):
        stop = tuple("".join(chance.choices("ab", k=chance.randint(1, 4))) for _ in range(2))
        engine, text, given, shown = StopStrings(stop), choice(*stop), "", ""
        told: list[Token] = []
        for number in range(30):
            token = "".join(chance.choices("ab", k=chance.randint(0, 3)))
            stays = engine.cut(token)
            end: FinishReason | None = "length" if number == 29 else None
            if stays is not None:
                token, end = token[:stays], "stop_sequence"
            given += token
            piece = text.push(output(token, end=end))
            shown += piece.text
            told += piece.tokens
            assert given.startswith(shown)
            if end is not None:
                break
        expected = given
        if end == "stop_sequence":
            found = max((s for s in stop if given.endswith(s)), key=len)
            assert text.stop_reason == found
            expected = given.removesuffix(found)
        assert shown == expected
        assert "".join(token.text for token in told).startswith(expected)
