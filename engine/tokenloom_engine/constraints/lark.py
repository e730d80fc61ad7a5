"""The words of Lark grammars, in llguidance's dialect of Lark."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple, cast

import msgspec

from tokenloom_engine.constraints.spec import ConstraintSpec

Kind = Literal[
    "space",
    "newline",
    "string",
    "regex",
    "json",
    "directive",
    "special_token",
    "reference",
    "rule",
    "terminal",
    "number",
    "sign",
]

WORD = re.compile(
    r"""
      (?P<space>(?:[ \t]|\#[^\n]*|//[^\n]*)+)
    | (?P<newline>(?:\r?\n)+[ \t]*)
    | (?P<string>"(?:\\.|[^"\\\n])*"i?)
    | (?P<regex>/(?:\\.|[^/\\])+/[imslux]*)
    | (?P<json>%(?:json|regex|llguidance)\b)
    | (?P<directive>%[a-z]+)
    | (?P<special_token><[^<>\s]+>)
    | (?P<reference>@[A-Za-z0-9_-]+)
    | (?P<rule>!?[_?]?[a-z][_a-z0-9-]*)
    | (?P<terminal>_?[A-Z][_A-Z0-9-]*)
    | (?P<number>0[xX][0-9a-fA-F]+|[+-]?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)
    | (?P<sign>->|\.\.|::|[+*?:,.(){}\[\]~|&=_])
    """,
    re.VERBOSE,
)
BRACKETS = {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}
TEXT_KEYS = ("lark_grammar", "grammar")
"""Under which llguidance's JSON form and structural tags have grammars."""
TEMPERATURE = re.compile(r"\btemperature[ \t]*=")
BLANK = re.compile(r"\s*")
BLANKS = ("space", "newline")


class Word(NamedTuple):
    """A piece of a grammar's text. All of them joined are the text."""

    kind: Kind
    text: str
    """Of kind `json`, the directive with the JSON that follows it."""


def lark_words(grammar: str) -> Iterator[Word]:
    """Cut a grammar into its words, white space included. Raises ValueError at what is none."""
    at = 0
    while at < len(grammar):
        match = WORD.match(grammar, at)
        if match is None:
            raise ValueError(f"not a word of Lark: {grammar[at : at + 20]!r}")
        kind, end = match.lastgroup, match.end()
        if kind == "json":
            start = BLANK.match(grammar, end)
            assert start is not None, "it matches nothing, too"
            _, end = json.JSONDecoder().raw_decode(grammar, start.end())
        yield Word(cast(Kind, kind), grammar[at:end])
        at = end


def lark_texts(grammar: str) -> list[str]:
    """The Lark grammars that a grammar consists of: itself, or those that its JSON form holds.

    Raises ValueError if there is no JSON.
    """
    if not is_json_form(grammar):
        return [grammar]
    match json.loads(grammar):
        case {"grammars": [*parts]}:
            texts = [part.get("lark_grammar") for part in parts if isinstance(part, dict)]
            return [text for text in texts if isinstance(text, str)]
    return []


def end_of_group(words: list[Word], opening: int) -> int:
    """Where the group ends whose bracket opens here. Raises ValueError."""
    depth = 0
    for at in range(opening, len(words)):
        depth += BRACKETS.get(words[at].text, 0)
        if depth == 0:
            return at + 1
    raise ValueError("a bracket is not closed")


def outer_words(words: list[Word]) -> Iterator[tuple[int, Word]]:
    """The words in no brackets, and these brackets themselves, with their places."""
    depth = 0
    for at, word in enumerate(words):
        step = BRACKETS.get(word.text, 0)
        depth += min(step, 0)
        if depth == 0:
            yield at, word
        depth += max(step, 0)


def next_word(words: list[Word], at: int) -> int:
    """The place of the next word that is more than white space."""
    at += 1
    while at < len(words) and words[at].kind in BLANKS:
        at += 1
    return at


def rule_attributes(words: list[Word]) -> dict[str, str]:
    """What stands between a rule's brackets; `words` are those inside."""
    attributes = {}
    start = 0
    for end in [*(at for at, word in outer_words(words) if word.text == ","), len(words)]:
        key, _, value = joined(words[start:end]).partition("=")
        if key.strip():
            attributes[key.strip()] = value.strip()
        start = end + 1
    return attributes


def stripped(words: list[Word]) -> list[Word]:
    """Without white space at the ends."""
    content = [at for at, word in enumerate(words) if word.kind not in BLANKS]
    return words[content[0] : content[-1] + 1] if content else []


def joined(words: list[Word]) -> str:
    """The text that these words are."""
    return "".join(word.text for word in words)


def is_json_form(grammar: str) -> bool:
    """Whether it is llguidance's JSON form, which holds one or more Lark grammars or schemas."""
    return grammar.lstrip().startswith("{")


def sets_temperature(spec: ConstraintSpec) -> bool:
    """Whether its text says at which temperature some part is drawn.

    It may say so of a text that has such words in a string, but never not of one that does it.
    """
    if spec.kind not in ("grammar", "structural_tag"):
        return False
    texts: Iterable[str] = [spec.value]
    if is_json_form(spec.value):
        if "temperature" not in spec.value and "\\" not in spec.value:
            return False
        try:
            texts = list(_texts(msgspec.json.decode(spec.value)))
        except (msgspec.MsgspecError, RecursionError):
            return True
    return any(TEMPERATURE.search(text) for text in texts)


def _texts(value: object) -> Iterator[str]:
    """The grammars in a JSON value."""
    if isinstance(value, dict):
        yield from (t for key in TEXT_KEYS if isinstance(t := value.get(key), str))
    if isinstance(value, (list, dict)):
        for child in value.values() if isinstance(value, dict) else value:
            yield from _texts(child)
