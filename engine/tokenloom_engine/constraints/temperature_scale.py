"""Which temperature holds where in a Lark grammar, in a form that llguidance can be asked for.

The library tells the highest temperature of the terminals that may come next. But it keeps the last
one when none of them has any, takes 0 for none, and loses those of terminals that may be empty and
of terminals in the company of nested grammars. So a second grammar is compiled, of the same
language, in which every terminal has a temperature: a mark, a whole number that stands for what
the client wrote, or for nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from tokenloom_engine.constraints.lark import (
    BRACKETS,
    Word,
    end_of_group,
    is_json_form,
    joined,
    lark_words,
    next_word,
    outer_words,
    rule_attributes,
    stripped,
)

MAX_LENGTH = 20_000
"""Of a grammar that sets temperatures: taking it apart holds the GIL."""
UNSET = 1
"""The mark of what has no temperature of its own."""
FLOAT32_MAX = 3.4028234663852886e38
FLOAT32_TINY = 1.1754943508222875e-38
EMPTY = ('""', '""i')
IMPOSSIBLE = r"/[^\s\S]/"
CERTAIN = re.compile(r'"(?:\\.|[^"\\])+"i?|' + re.escape(IMPOSSIBLE), re.DOTALL)
"""Terminals that certainly do not match the empty text."""

AreNullable = Callable[[str, list[str]], list[bool]]
"""Given definitions of terminals: which of some terminals match the empty text, too."""


@dataclass(frozen=True, slots=True)
class TemperatureScale:
    """A grammar with marks for temperatures, and what they mean."""

    grammar: str
    temperatures: tuple[float | None, ...]
    """By mark. Higher marks stand for higher temperatures."""

    @classmethod
    def of(cls, grammar: str, prefix: str, are_nullable: AreNullable) -> TemperatureScale | None:
        """Mark a valid grammar, behind a prefix; None if it sets no temperature.

        Raises ValueError if it sets one that cannot be followed.
        """
        if len(grammar) > MAX_LENGTH:
            raise ValueError("it is too large for a grammar that sets temperatures")
        if is_json_form(grammar):
            whole = json.loads(grammar)
        else:
            whole = {"grammars": [{"lark_grammar": grammar}]}
        first, *others = whole["grammars"]
        for other in others:
            if lark := other.get("lark_grammar"):
                other["lark_grammar"] = _InnerGrammar(list(lark_words(lark))).text
        if not (lark := first.get("lark_grammar")):
            return None
        outer = _OuterGrammar(list(lark_words(lark)), prefix, are_nullable)
        first["lark_grammar"] = outer.text
        if not outer.temperatures:
            return None
        return cls(json.dumps(whole), (None, None, *outer.temperatures))


class _Terminal(NamedTuple):
    """What matches a regular language, as the body of a rule."""

    text: str
    mark: int
    max_tokens: str | None


class _Rule:
    """One rule, taken apart."""

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
        return bool(body) and _is_nested(body[0]) and _end_of_part(body, 0) == len(body)

    def with_body(self, body: str, mark: int | None = None) -> str:
        """The rule with another body and with a mark as its temperature, without captures."""
        attributes = {**self.attributes, "temperature": None if mark is None else str(mark)}
        kept = [
            key if key == "lazy" else f"{key}={value}"
            for key, value in attributes.items()
            if value is not None and key not in ("capture", "stop_capture")
        ]
        return f"{self.head}[{', '.join(kept)}]: {body}" if kept else f"{self.head}: {body}"


class _Grammar:
    """One Lark grammar on its way to being marked."""

    def __init__(self, words: list[Word], prefix: str = "") -> None:
        self.stem = "any"
        """Names that begin so are free."""
        while any(word.text.lstrip("!?").startswith(self.stem) for word in words):
            self.stem += "-"
        if prefix:
            words = [self._without_start(word) for word in words]
        items = list(_items(words))
        self.rules = [_Rule(item) for item in items if item[0].kind == "rule"]
        self.others = [joined(item) for item in items if item[0].kind != "rule"]
        self._nested: dict[str, str] = {}

    def expansions(self, words: list[Word]) -> str:
        """The body of a rule, with each of its parts marked."""
        parts, start = [], 0
        while start < len(words):
            end = _end_of_part(words, start)
            parts.append(self.part(words[start:end]))
            start = end
        return "".join(parts)

    def part(self, words: list[Word]) -> str:
        """One part of a body: what stands for a nested grammar is a rule with a mark."""
        if not _is_nested(words[0]):
            return joined(words)
        return self._nested.setdefault(_nested_text(words), f"{self.stem}nested{len(self._nested)}")

    def nested_rules(self) -> list[str]:
        """The rules that stand for nested grammars."""
        return [f"{name}[temperature={UNSET}]: {text}" for text, name in self._nested.items()]

    def _without_start(self, word: Word) -> Word:
        is_start = word.kind == "rule" and word.text.lstrip("!?") == "start"
        return Word("rule", f"{self.stem}start") if is_start else word


class _InnerGrammar(_Grammar):
    """A grammar in a place of another, whose mark all its terminals have."""

    @property
    def text(self) -> str:
        """It, with marks for what is nested in it. Raises ValueError if it sets a temperature."""
        rules = []
        for rule in self.rules:
            if rule.temperature is not None:
                raise ValueError("`temperature` is not supported in a grammar inside another")
            if rule.is_nested:
                rules.append(rule.with_body(_nested_text(rule.body), UNSET))
            else:
                rules.append(rule.with_body(self.expansions(rule.body)))
        return "\n".join([*self.others, *rules, *self.nested_rules(), ""])


class _OuterGrammar(_Grammar):
    """The grammar that others may be nested in."""

    def __init__(self, words: list[Word], prefix: str, are_nullable: AreNullable) -> None:
        super().__init__(words, prefix)
        self.temperatures = sorted(
            {t for rule in self.rules if (t := rule.temperature) is not None}
        )
        self._prefix = prefix
        self._are_nullable = are_nullable
        self._terminals: dict[_Terminal, str] = {}

    @property
    def text(self) -> str:
        """It, with marks, behind the prefix. Raises ValueError."""
        rules = [self._marked(rule) for rule in self.rules]
        if self._prefix:
            rules.append(f"start: {self._reference(json.dumps(self._prefix))} {self.stem}start")
        rules += self.nested_rules() + self._terminal_rules()
        return "\n".join([*self.others, *rules, ""])

    def part(self, words: list[Word]) -> str:
        """One part of a body: what stands for a terminal is a rule with a mark, too."""
        first, text = words[0], joined(words)
        if first.kind == "special_token":  # it cannot have a mark; what stands beside it can
            return f"({text} | {self._reference(IMPOSSIBLE)})"
        is_terminal = first.kind in ("string", "regex", "terminal") or text.startswith("%regex")
        is_negation = first.text == "~" and len(words) > 1
        if is_negation or is_terminal and text not in EMPTY:
            return self._reference(text)
        return super().part(words)

    def _marked(self, rule: _Rule) -> str:
        temperature = rule.temperature
        mark = UNSET if temperature is None else UNSET + 1 + self.temperatures.index(temperature)
        if rule.is_lazy:
            return rule.with_body(joined(rule.body), mark)
        if not {"temperature", "max_tokens"} & rule.attributes.keys():
            return rule.with_body(self.expansions(rule.body))
        if rule.is_nested:
            return rule.with_body(_nested_text(rule.body), mark)
        terminal = self._reference(joined(rule.body), mark, rule.attributes.get("max_tokens"))
        return f"{rule.head}: {terminal}"

    def _reference(self, text: str, mark: int = UNSET, max_tokens: str | None = None) -> str:
        """The name of the rule that stands for a terminal."""
        terminal = _Terminal(text, mark, max_tokens)
        return self._terminals.setdefault(terminal, f"{self.stem}{len(self._terminals)}")

    def _terminal_rules(self) -> list[str]:
        """The rules that stand for terminals."""
        definitions = [text for text in self.others if not text.startswith("%ignore")]
        unsure = [t.text for t in self._terminals if not CERTAIN.fullmatch(t.text)]
        nullable = self._are_nullable("\n".join(definitions), unsure)
        may_be_empty = {text for text, may in zip(unsure, nullable, strict=True) if may}
        rules = []
        for terminal, name in self._terminals.items():
            limit = f", max_tokens={terminal.max_tokens}" if terminal.max_tokens is not None else ""
            attributes = f"[temperature={terminal.mark}{limit}]"
            if terminal.text in may_be_empty:  # as it is, the mark would be lost
                rules.append(f'{name}: {name}-some | ""')
                rules.append(f'{name}-some{attributes}: ({terminal.text}) & ~""')
            else:
                rules.append(f"{name}{attributes}: {terminal.text}")
        return rules


def _items(words: list[Word]) -> Iterator[list[Word]]:
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


def _end_of_part(words: list[Word], start: int) -> int:
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
            end_of_group(words, after) if following.text in BRACKETS else _end_of_part(words, after)
        )
    return start + 1


def _is_nested(word: Word) -> bool:
    """Whether a nested grammar begins with this word."""
    return word.kind == "reference" or word.text.startswith(("%json", "%lark"))


def _nested_text(words: list[Word]) -> str:
    """A nested grammar, with marks for what is nested in it in turn."""
    if words[0].text != "%lark":
        return joined(words)
    inner = words[next_word(words, 0) + 1 : -1]
    return f"%lark {{\n{_InnerGrammar(inner).text}}}"
