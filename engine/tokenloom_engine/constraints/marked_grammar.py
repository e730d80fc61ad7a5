"""Lark grammars in which every terminal has a temperature: a mark, a whole number.

It stands for what the client wrote, or for nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import NamedTuple

from tokenloom_engine.constraints.lark import Word, joined, next_word
from tokenloom_engine.constraints.lark_rule import (
    LarkRule,
    end_of_part,
    is_nested_grammar,
    lark_items,
)

UNSET = 1
"""The mark of what has no temperature of its own."""
EMPTY = ('""', '""i')
IMPOSSIBLE = r"/[^\s\S]/"
CERTAIN = re.compile(r'"(?:\\.|[^"\\])+"i?|' + re.escape(IMPOSSIBLE), re.DOTALL)
"""Terminals that certainly do not match the empty text."""

AreNullable = Callable[[str, list[str]], list[bool]]
"""Given definitions of terminals: which of some terminals match the empty text, too."""


class _Terminal(NamedTuple):
    """What matches a regular language, as the body of a rule."""

    text: str
    mark: int
    max_tokens: str | None


class _Grammar:
    """One Lark grammar on its way to being marked."""

    def __init__(self, words: list[Word], prefix: str = "") -> None:
        self.stem = "any"
        """Names that begin so are free."""
        while any(word.text.lstrip("!?").startswith(self.stem) for word in words):
            self.stem += "-"
        if prefix:
            words = [self._without_start(word) for word in words]
        items = list(lark_items(words))
        self.rules = [LarkRule(item) for item in items if item[0].kind == "rule"]
        self.others = [joined(item) for item in items if item[0].kind != "rule"]
        self._nested: dict[str, str] = {}

    def expansions(self, words: list[Word]) -> str:
        """The body of a rule, with each of its parts marked."""
        parts, start = [], 0
        while start < len(words):
            end = end_of_part(words, start)
            parts.append(self.part(words[start:end]))
            start = end
        return "".join(parts)

    def part(self, words: list[Word]) -> str:
        """One part of a body: what stands for a nested grammar is a rule with a mark."""
        if not is_nested_grammar(words[0]):
            return joined(words)
        return self._nested.setdefault(_nested_text(words), f"{self.stem}nested{len(self._nested)}")

    def nested_rules(self) -> list[str]:
        """The rules that stand for nested grammars."""
        return [f"{name}[temperature={UNSET}]: {text}" for text, name in self._nested.items()]

    def _without_start(self, word: Word) -> Word:
        is_start = word.kind == "rule" and word.text.lstrip("!?") == "start"
        return Word("rule", f"{self.stem}start") if is_start else word


class InnerGrammar(_Grammar):
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


class OuterGrammar(_Grammar):
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

    def _marked(self, rule: LarkRule) -> str:
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


def _nested_text(words: list[Word]) -> str:
    """A nested grammar, with marks for what is nested in it in turn."""
    if words[0].text != "%lark":
        return joined(words)
    inner = words[next_word(words, 0) + 1 : -1]
    return f"%lark {{\n{InnerGrammar(inner).text}}}"
