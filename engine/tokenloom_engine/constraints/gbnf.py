"""GBNF grammars, as llama.cpp reads them, translated to llguidance's dialect of Lark."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Literal, NoReturn

NAME = re.compile(r"[\w-]+")
SPACE = re.compile(r"(?:[ \t]|#[^\r\n]*)*")
SPACE_AND_NEWLINES = re.compile(r"(?:[ \t\r\n]|#[^\r\n]*)*")
ESCAPE = re.compile(
    r'\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([trn])|([\\"\[\]-]))'
)
CONTROLS = {"t": "\t", "r": "\r", "n": "\n"}
REPETITION = re.compile(r"[*+?]|\{\s*(?P<least>\d+)\s*(?P<open>,\s*(?P<most>\d+)?\s*)?\}")
LAST = 0x10FFFF


def lark_of_gbnf(grammar: str) -> str:
    """Translate a grammar. Raises ValueError with the line and the column of what is wrong."""
    return _Writer(_Reader(grammar).rules()).lark()


@dataclass(frozen=True, slots=True)
class _Term:
    """A literal or a character class, in Lark."""

    lark: str


@dataclass(frozen=True, slots=True)
class _Reference:
    """A rule's name in another rule."""

    rule: str
    at: str
    """The place, for messages."""


@dataclass(frozen=True, slots=True)
class _Repeated:
    item: _Item
    quantifier: str


@dataclass(frozen=True, slots=True)
class _Group:
    """Alternatives, each a sequence of items."""

    alternatives: list[list[_Item]]


_Item = _Term | _Reference | _Repeated | _Group


class _Reader:
    """Reads a grammar's text from its first character to its last."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._position = 0

    def rules(self) -> dict[str, _Group]:
        """All rules by name. As in llama.cpp, the last one of a name counts."""
        rules: dict[str, _Group] = {}
        self._skip(newlines=True)
        while self._position < len(self._text):
            name = self._name()
            self._skip(newlines=False)
            self._expect("::=")
            self._skip(newlines=True)
            rules[name] = self._group(nested=False)
            if self._next not in ("\r", "\n", ""):
                self._fail("a new line or the end is expected here")
            self._skip(newlines=True)
        return rules

    @property
    def _next(self) -> str:
        return self._text[self._position : self._position + 1]

    def _group(self, *, nested: bool) -> _Group:
        alternatives = [self._sequence(nested=nested)]
        while self._take("|"):
            self._skip(newlines=True)
            alternatives.append(self._sequence(nested=nested))
        return _Group(alternatives)

    def _sequence(self, *, nested: bool) -> list[_Item]:
        items: list[_Item] = []
        while (item := self._item()) is not None:
            self._skip(newlines=nested)
            while (quantifier := self._quantifier()) is not None:
                item = _Repeated(item, quantifier)
                self._skip(newlines=nested)
            items.append(item)
        return items

    def _item(self) -> _Item | None:
        if self._take('"'):
            return self._literal()
        if self._take("["):
            return self._character_class()
        if self._take("."):
            return _Term("/(?s:.)/")
        if self._take("("):
            self._skip(newlines=True)
            group = self._group(nested=True)
            self._expect(")")
            return group
        if self._next in ("<", "!"):
            self._fail("tokens are not supported in GBNF; a grammar in Lark has them")
        if NAME.match(self._text, self._position):
            at = self._place()
            return _Reference(self._name(), at)
        return None

    def _quantifier(self) -> str | None:
        if self._next not in ("*", "+", "?", "{"):
            return None
        found = REPETITION.match(self._text, self._position)
        if found is None:
            self._fail("a repetition is `{m}`, `{m,}` or `{m,n}`")
        if found["most"] is not None and int(found["most"]) < int(found["least"]):
            self._fail("the least count of a repetition is greater than its most")
        self._position = found.end()
        return re.sub(r"\s", "", found[0])

    def _literal(self) -> _Term:
        text = ""
        while not self._take('"'):
            text += chr(self._character("literal"))
        return _Term(json.dumps(text))

    def _character_class(self) -> _Term:
        start = self._position - 1
        negation = "^" if self._take("^") else ""
        ranges = ""
        while not self._take("]"):
            first = last = self._character("character class")
            if self._next == "-" and self._text[self._position + 1 : self._position + 2] != "]":
                self._position += 1
                last = self._character("character class")
                if last < first:
                    self._fail("the last character of a range comes before its first")
            ranges += f"\\x{{{first:x}}}" + (f"-\\x{{{last:x}}}" if last > first else "")
        if not ranges:
            self._position = start
            self._fail("the character class is empty")
        return _Term(f"/[{negation}{ranges}]/")

    def _character(self, within: Literal["literal", "character class"]) -> int:
        """The code point of the next character or escape."""
        if not self._next:
            self._fail(f"a {within} is not closed")
        if self._next != "\\":
            self._position += 1
            return ord(self._text[self._position - 1])
        found = ESCAPE.match(self._text, self._position)
        if found is None:
            self._fail(
                r"an escape is one of \xHH, \uHHHH, \UHHHHHHHH, \t, \r, \n, \\, \", \[, \], \-"
            )
        digits = found[1] or found[2] or found[3]
        code = int(digits, 16) if digits else ord(CONTROLS.get(found[4], found[5] or ""))
        if code > LAST or 0xD800 <= code < 0xE000:
            self._fail(f"there is no character {found[0]}")
        self._position = found.end()
        return code

    def _name(self) -> str:
        found = NAME.match(self._text, self._position)
        if found is None:
            self._fail("the name of a rule is expected here")
        self._position = found.end()
        return found[0]

    def _skip(self, *, newlines: bool) -> None:
        found = (SPACE_AND_NEWLINES if newlines else SPACE).match(self._text, self._position)
        assert found is not None, "it matches nothing, too"
        self._position = found.end()

    def _take(self, text: str) -> bool:
        found = self._text.startswith(text, self._position)
        self._position += len(text) * found
        return found

    def _expect(self, text: str) -> None:
        if not self._take(text):
            self._fail(f"`{text}` is expected here")

    def _place(self) -> str:
        before = self._text[: self._position]
        column = self._position - before.rfind("\n")
        return f"line {before.count(chr(10)) + 1}, column {column}"

    def _fail(self, message: str) -> NoReturn:
        raise ValueError(f"{message}, at {self._place()}")


class _Writer:
    """Writes rules as Lark. What does not recur is a terminal, which the lexer matches whole."""

    def __init__(self, rules: dict[str, _Group]) -> None:
        """Raises ValueError if a rule is missing."""
        if "root" not in rules:
            raise ValueError("there is no rule `root`")
        for group in rules.values():
            for reference in _references(group):
                if reference.rule not in rules:
                    raise ValueError(f"there is no rule `{reference.rule}`, at {reference.at}")
        self._rules = rules
        self._names = self._lark_names(self._terminals())

    def lark(self) -> str:
        """All rules."""
        lines = [
            f"{self._names[name]}: {self._alternatives(group)}"
            for name, group in self._rules.items()
        ]
        return "\n".join(["%llguidance {}", *lines])

    def _terminals(self) -> set[str]:
        """Rules that refer to nothing but terminals; `root` is none."""
        waiting = {
            name: {reference.rule for reference in _references(group)}
            for name, group in self._rules.items()
            if name != "root"
        }
        terminals: set[str] = set()
        while found := {name for name, used in waiting.items() if used <= terminals}:
            terminals |= found
            for name in found:
                del waiting[name]
        return terminals

    def _lark_names(self, terminals: set[str]) -> dict[str, str]:
        """Names that Lark takes, without two rules that share one."""
        names = {"root": "start"}
        taken = {"start"}
        for rule in self._rules:
            if rule in names:
                continue
            words = re.sub(r"[^a-z0-9]+", "_", rule.lower()).strip("_")
            base = words if words[:1].isalpha() else f"rule_{words}"
            name, number = base, 1
            while name in taken:
                number += 1
                name = f"{base}_{number}"
            taken.add(name)
            names[rule] = name.upper() if rule in terminals else name
        return names

    def _alternatives(self, group: _Group) -> str:
        return " | ".join(
            " ".join(map(self._item, sequence)) or '""' for sequence in group.alternatives
        )

    def _item(self, item: _Item) -> str:
        match item:
            case _Term(lark):
                return lark
            case _Reference(rule):
                return self._names[rule]
            case _Repeated(_Repeated() as inner, quantifier):
                return f"({self._item(inner)}){quantifier}"
            case _Repeated(inner, quantifier):
                return f"{self._item(inner)}{quantifier}"
            case _Group():
                return f"({self._alternatives(item)})"


def _references(item: _Item) -> list[_Reference]:
    match item:
        case _Reference():
            return [item]
        case _Repeated(inner):
            return _references(inner)
        case _Group(alternatives):
            return [found for row in alternatives for part in row for found in _references(part)]
    return []
