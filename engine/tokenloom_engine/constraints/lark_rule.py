"""The rules of Lark grammars, taken apart."""

from __future__ import annotations

from collections.abc import Iterator

from tokenloom_engine.constraints.lark import (
    BRACKETS,
    Word,
    end_of_group,
    joined,
    next_word,
    outer_words,
    rule_attributes,
    stripped,
)

FLOAT32_MAX = 3.4028234663852886e38
FLOAT32_TINY = 1.1754943508222875e-38


class LarkRule:
    """One rule."""

    def __init__(self, words: list[Word]) -> None:
        colon = next((at for at, word in outer_words(words) if word.text == ":"), None)
        if colon is None:
            raise ValueError(f"a rule without a colon: {joined(words)[:20]!r}")
        opening = next((at for at in range(colon) if words[at].text == "["), colon)
        inside = words[opening + 1 : end_of_group(words, opening) - 1] if opening < colon else []
        self.head = joined(words[:opening])
        self.attributes = rule_attributes(inside)
        self.body = stripped(words[colon + 1 :])

    @property
    def temperature(self) -> float | None:
        """As the client wrote it. Raises ValueError if it is out of bounds."""
        text = self.attributes.get("temperature")
        if text is None:
            return None
        temperature = float(text)
        if temperature != 0.0 and not FLOAT32_TINY <= temperature <= FLOAT32_MAX:
            raise ValueError(f"`temperature` must be 0 or a positive number. Given: {text}")
        return temperature

    @property
    def is_lazy(self) -> bool:
        """Whether it ends as soon as it can."""
        return any(key in self.attributes for key in ("stop", "suffix", "lazy"))

    @property
    def is_nested(self) -> bool:
        """Whether it consists of one nested grammar."""
        body = self.body
        return bool(body) and is_nested_grammar(body[0]) and end_of_part(body, 0) == len(body)

    def with_body(self, body: str, mark: int | None = None) -> str:
        """The rule with another body and with a mark as its temperature, without captures."""
        attributes = {**self.attributes, "temperature": None if mark is None else str(mark)}
        kept = [
            key if key == "lazy" else f"{key}={value}"
            for key, value in attributes.items()
            if value is not None and key not in ("capture", "stop_capture")
        ]
        return f"{self.head}[{', '.join(kept)}]: {body}" if kept else f"{self.head}: {body}"


def lark_items(words: list[Word]) -> Iterator[list[Word]]:
    """The rules, definitions and directives of a grammar, each on its own."""
    start = 0
    ends = [at for at, word in outer_words(words) if word.kind == "newline" and _ends(words, at)]
    for end in [*ends, len(words)]:
        if item := stripped(words[start:end]):
            yield item
        start = end


def _ends(words: list[Word], newline: int) -> bool:
    """Whether a rule's or a definition's last line ends here."""
    after = next_word(words, newline)
    return after == len(words) or words[after].text != "|"


def end_of_part(words: list[Word], start: int) -> int:
    """Where the part of a rule's body ends that begins here."""
    word, after = words[start], next_word(words, start)
    following = words[after] if after < len(words) else word
    if word.kind == "string" and following.text == "..":
        return next_word(words, after) + 1
    if word.text == "%lark":
        return end_of_group(words, after)
    if word.text == "%if":
        rest = words[start:]
        ends = (at for at, w in outer_words(rest) if w.kind == "newline" or w.text == "|")
        return start + next(ends, len(rest))
    if word.text == "~" and following.kind != "number":
        return (
            end_of_group(words, after) if following.text in BRACKETS else end_of_part(words, after)
        )
    return start + 1


def is_nested_grammar(word: Word) -> bool:
    """Whether a nested grammar begins with this word."""
    return word.kind == "reference" or word.text.startswith(("%json", "%lark"))
