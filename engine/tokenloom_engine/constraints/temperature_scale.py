"""Which temperature holds where in a Lark grammar, in a form that llguidance can be asked for.

The library tells the highest temperature of the terminals that may come next. But it keeps the last
one when none of them has any, takes 0 for none, and loses those of terminals that may be empty and
of terminals in the company of nested grammars. So a second grammar is compiled, of the same
language, in which every terminal has a mark for a temperature (`marked_grammar.py`).
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from tokenloom_engine.constraints.lark import is_json_form, lark_words
from tokenloom_engine.constraints.marked_grammar import AreNullable, InnerGrammar, OuterGrammar

MAX_LENGTH = 20_000
"""Of a grammar that sets temperatures: taking it apart holds the GIL."""


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
                other["lark_grammar"] = InnerGrammar(list(lark_words(lark))).text
        if not (lark := first.get("lark_grammar")):
            return None
        outer = OuterGrammar(list(lark_words(lark)), prefix, are_nullable)
        first["lark_grammar"] = outer.text
        if not outer.temperatures:
            return None
        return cls(json.dumps(whole), (None, None, *outer.temperatures))
