"""The texts that a Lark grammar's named parts matched, from what llguidance tells of them."""

from __future__ import annotations

from collections.abc import Iterable

from tokenloom_engine.constraints.base import Captures
from tokenloom_engine.constraints.lark import (
    Word,
    end_of_group,
    lark_texts,
    lark_words,
    next_word,
    rule_attributes,
)

LIST = "__LIST_APPEND:"
"""What begins so is the name of a list that the text is appended to, as guidance writes it."""
MAX_LENGTH = 50_000
"""Of a grammar that is read for the details of its captures."""
LAZY = ("stop", "suffix", "lazy")


class CaptureReader:
    """Reads the captures of one grammar."""

    def __init__(self, grammar: str) -> None:
        """Never raises: it is the library that decides what a grammar is."""
        self._exact: set[str] = set()
        """Captures of rules that end lazily: if they say that nothing was matched, it is so.

        Others that may be empty are reported as such wherever they might begin, too.
        """
        if len(grammar) <= MAX_LENGTH:
            try:
                for text in lark_texts(grammar):
                    self._exact.update(_lazy_captures(list(lark_words(text))))
            except (ValueError, RecursionError):
                self._exact.clear()

    def read(self, matched: Iterable[tuple[str, bytes]], *, is_whole: bool) -> Captures:
        """The last text of each name, and all of each list.

        `is_whole`: whether the grammar is complete. If not, nothing matched means nothing.
        """
        captures: Captures = {}
        for name, value in matched:
            text = value.decode(errors="replace")
            is_list = name.startswith(LIST)
            key = name.removeprefix(LIST)
            if (
                not text
                and name not in self._exact
                and (is_list or not is_whole or captures.get(key))
            ):
                continue
            if is_list:
                before = captures.get(key)
                if isinstance(before, list):
                    before.append(text)
                else:
                    captures[key] = [text]
            else:
                captures[key] = text
        return captures


def _lazy_captures(words: list[Word]) -> Iterable[str]:
    """The names that rules with a lazy end, and the texts that end them, are captured by."""
    for at, word in enumerate(words):
        opening = next_word(words, at)
        if word.kind != "rule" or opening == len(words) or words[opening].text != "[":
            continue
        end = end_of_group(words, opening)
        attributes = rule_attributes(words[opening + 1 : end - 1])
        if not any(key in attributes for key in LAZY):
            continue
        if "capture" in attributes:
            yield attributes["capture"].strip('"') or word.text.lstrip("!?")
        if "stop_capture" in attributes:
            yield attributes["stop_capture"].strip('"')
