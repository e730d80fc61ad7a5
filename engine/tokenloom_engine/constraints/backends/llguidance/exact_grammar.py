"""Lark grammars whose JSON Schemas are in the form that llguidance enforces exactly."""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec

from tokenloom_engine.constraints.backends.llguidance.exact_schema import exact_schema
from tokenloom_engine.constraints.lark import is_json_form

DIRECTIVE = re.compile(r"%json\b\s*")
DECODER = json.JSONDecoder()


def exact_grammar(grammar: str) -> str:
    """Rewrite the schemas in a grammar: those behind `%json`, and those of the JSON form.

    Raises InvalidConstraintError as `exact_schema` does.
    """
    if not is_json_form(grammar):
        return _exact_lark(grammar)
    try:
        whole = msgspec.json.decode(grammar, type=dict[str, msgspec.Raw])
        parts = msgspec.json.decode(whole.get("grammars", b"[]"), type=list[dict[str, msgspec.Raw]])
        for part in parts:
            _rewrite_part(part)
    except (msgspec.MsgspecError, RecursionError):  # the library has better words for it
        return grammar
    whole["grammars"] = msgspec.Raw(msgspec.json.encode(parts))
    return msgspec.json.encode(whole).decode()


def _rewrite_part(part: dict[str, msgspec.Raw]) -> None:
    if "json_schema" in part:
        part["json_schema"] = msgspec.Raw(_exact(bytes(part["json_schema"]).decode()).encode())
    if "lark_grammar" in part:
        lark: Any = msgspec.json.decode(part["lark_grammar"])
        if isinstance(lark, str):
            part["lark_grammar"] = msgspec.Raw(msgspec.json.encode(_exact_lark(lark)))


def _exact_lark(grammar: str) -> str:
    parts, at = [], 0
    for directive in DIRECTIVE.finditer(grammar):
        start = directive.end()
        try:
            _, end = DECODER.raw_decode(grammar, start)
        except (ValueError, RecursionError):  # a comment, or part of a string
            continue
        if start >= at:
            parts += [grammar[at:start], _exact(grammar[start:end])]
            at = end
    return "".join([*parts, grammar[at:]])


def _exact(text: str) -> str:
    """A schema's text, with the escapes that it may use among its own options."""
    schema = exact_schema(text, lenient=False)
    if schema.escapes is None:
        return schema.text
    parts = msgspec.json.decode(schema.text, type=dict[str, msgspec.Raw])
    own: Any = msgspec.json.decode(parts.get("x-guidance", b"{}"))
    if isinstance(own, dict):
        options = {**own, "json_allowed_escapes": schema.escapes}
        parts["x-guidance"] = msgspec.Raw(msgspec.json.encode(options))
    return msgspec.json.encode(parts).decode()
