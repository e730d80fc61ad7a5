"""The kinds of harm that a grammar may do: ways to be dear, late, endless or large."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from benchmarks.schemas import Schema, matching, record, text, whole

GrammarType = Literal["json", "regex", "grammar"]
PASSAGE = " ".join(f"word{i} other" for i in range(2000))
"""A long text that leaves no choice."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One way to do harm."""

    name: str
    type: GrammarType
    value: Callable[[int], Any]
    """The i-th grammar of this kind: no two are alike, so each is compiled anew."""
    rows: int = 1
    """How many sequences have it at once."""
    max_tokens: int = 64
    stop: tuple[str, ...] = ()

    def grammar(self, i: int) -> dict[str, Any]:
        """The i-th, as a request has it."""
        value = self.value(i)
        return {"type": self.type, "value": value if isinstance(value, str) else json.dumps(value)}


def alternatives(count: int) -> list[Schema]:
    """Arrays of themselves, in so many ways: each token is looked at in all of them."""
    element = {"$ref": "#/$defs/e"}
    return [{"type": "array", "items": element, "minItems": 1 + j % 3} for j in range(count)]


def _alternatives_behind(first: Schema, count: int, name: str) -> Schema:
    element = {"$ref": "#/$defs/e"}
    properties = {"first": first, name: element}
    return {"$defs": {"e": {"anyOf": alternatives(count)}}, **record(**properties)}


def _terminals(i: int) -> str:
    """Many that begin alike: the states of their lexer multiply."""
    names = [f"A{j}" for j in range(200)]
    terminals = [f"A{j}: /[a-z]*{chr(97 + j % 26)}[a-z]{{{j % 12}}}[0-9]/" for j in range(200)]
    return "\n".join([f'start: "{i}" ({" | ".join(names)})+', *terminals])


CROWD = (
    Kind("large counts", "regex", lambda i: f"(a{{1,{990 + i}}}){{1,1000}}"),
    Kind("nested repetition", "regex", lambda i: f"(a+)+b{{{i + 1}}}"),
    Kind("many states", "regex", lambda i: f"[ab]*a[ab]{{{18 + i}}}"),
    Kind("long text", "regex", lambda i: f".{{0,{100000 + i}}}"),
    Kind("large enum", "json", lambda i: {"enum": [f"value {i} {j}" for j in range(20_000)]}),
    Kind(
        "large anyOf",
        "json",
        lambda i: {
            "anyOf": [record(**{f"p{i}_{j}": text(9), "q": whole(0, 9)}) for j in range(2000)]
        },
    ),
    Kind(
        "deeply nested",
        "json",
        lambda i: '{"type":"array","items":' * 3000 + "{}" + "}" * 3000,
    ),
    Kind("ambiguous", "grammar", lambda i: f'start: "{"a" * i}" e\ne: e e | "a"', max_tokens=160),
    Kind(
        "never ends",
        "json",
        lambda i: {"type": "object", "properties": {f"c{i}": {"$ref": "#"}}, "required": [f"c{i}"]},
    ),
    Kind(
        "ambiguous alternatives",
        "json",
        lambda i: {
            "$defs": {"e": {"anyOf": alternatives(200)}},
            **record(**{f"a{i}": {"$ref": "#/$defs/e"}}),
        },
    ),
)
"""Those of the requests in a crowd."""
KINDS = (
    *CROWD,
    Kind(
        "16 rows, ambiguous",
        "grammar",
        lambda i: f'start: "{"a" * (i % 9)}" e\ne: e e | "a"',
        rows=16,
        max_tokens=160,
    ),
    Kind(
        "16 rows, alternatives",
        "json",
        lambda i: _alternatives_behind({"const": "x"}, 20, f"a{i}"),
        rows=16,
    ),
    Kind(
        "ambiguous after a while",
        "grammar",
        lambda i: f'start: /[b-z]{{{40 + i % 9}}}/ e\ne: e e | "a"',
        max_tokens=240,
    ),
    Kind(
        "200 alternatives after a while",
        "json",
        lambda i: _alternatives_behind(matching("^[a-z]{40}$"), 200, f"a{i}"),
    ),
    Kind(
        "50 alternatives after a while",
        "json",
        lambda i: _alternatives_behind(matching("^[a-z]{40}$"), 50, f"a{i}"),
    ),
    Kind(
        "long list of captures",
        "grammar",
        lambda i: f'start: "{i}" (x " ")+\nx[capture="__LIST_APPEND:x"]: /[a-z]+/',
        max_tokens=400,
    ),
    Kind(
        "captures of what is ambiguous",
        "grammar",
        lambda i: f'start: "{"a" * (i % 9)}" e\ne[capture]: e e | "a"',
        max_tokens=60,
    ),
    Kind(
        "captures up to a stop string within forced text",
        "grammar",
        lambda i: (
            f'start: "{i}" x y\nx[capture]: /[a-z ]{{200}}/\ny[capture]: "{PASSAGE[:200]} halt"'
        ),
        max_tokens=300,
        stop=("word9",),
    ),
    Kind("thousands of forced bytes", "regex", lambda i: f"{i} {PASSAGE}", max_tokens=640),
    Kind(
        "a constant of thousands of bytes",
        "json",
        lambda i: {"const": f"{i} {PASSAGE}"},
        max_tokens=640,
    ),
    Kind("list of 50,000 choices", "json", lambda i: {"enum": [f"{i} {j}" for j in range(50_000)]}),
    Kind(
        "nested alternatives of one letter",
        "regex",
        lambda i: "(" + "|".join("a" * j for j in range(1, 1200 + i)) + ")",
    ),
    Kind("large counts of words", "regex", lambda i: f"([a-z]{{1,{300 + i}}} ){{1,300}}"),
    Kind(
        "lazy, over much",
        "grammar",
        lambda i: f'start: "{i}" x y\nx[lazy]: /(.|\\n){{0,5000}}b/\ny: /(.|\\n)*/',
    ),
    Kind("states by the thousand", "regex", lambda i: f"(.*a.{{{30 + i}}}|.*b.{{31}}|.*c.{{29}})x"),
    Kind("200 terminals that begin alike", "grammar", _terminals),
    Kind(
        "pairs around a middle",
        "grammar",
        lambda i: f'start: "{i}" e\ne: /[ab]/ e /[ab]/ | /[ab]/ | /[ab]/ /[ab]/',
        max_tokens=160,
    ),
    Kind(
        "right recursion",
        "grammar",
        lambda i: f'start: "{i}" e\ne: "a" e | "a" | "a" e "a"',
        max_tokens=160,
    ),
    Kind(
        "2,000 properties",
        "json",
        lambda i: {"type": "object", "properties": {f"p{i}_{j}": text(9) for j in range(2000)}},
    ),
    Kind(
        "a megabyte of small things",
        "json",
        lambda i: {"enum": [[j, i, []] for j in range(60_000)]},
    ),
)
"""All."""


def hostile_grammar(i: int) -> dict[str, Any]:
    """The i-th grammar of a crowd that is meant to do harm."""
    return CROWD[i % len(CROWD)].grammar(i)
