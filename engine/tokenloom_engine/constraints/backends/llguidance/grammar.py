"""Specs in the words of llguidance: as one of its own grammars."""

from __future__ import annotations

import json
import re
from itertools import count
from typing import TYPE_CHECKING, Any

import msgspec
from llguidance import LLMatcher

from tokenloom_engine.constraints.backends.llguidance.exact_grammar import exact_grammar
from tokenloom_engine.constraints.backends.llguidance.exact_schema import (
    ExactSchema,
    exact_schema,
)
from tokenloom_engine.constraints.backends.llguidance.plain_schema import plain_schema
from tokenloom_engine.constraints.base import InvalidConstraintError
from tokenloom_engine.constraints.choices import read_choices
from tokenloom_engine.constraints.gbnf import lark_of_gbnf
from tokenloom_engine.constraints.notation import grammar_notation
from tokenloom_engine.constraints.regex_literal import regex_literal
from tokenloom_engine.constraints.spec import ConstraintSpec
from tokenloom_engine.constraints.special_tokens import SpecialTokens
from tokenloom_engine.constraints.tag_grammar import tag_grammar

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

GRAMMAR_NAME = re.compile(r"[A-Za-z0-9_-]+")
"""The names by which one grammar of the JSON form can refer to another."""
LARGE = 50_000
"""Characters of a schema whose JSON takes the library a millisecond or more to parse."""
JSON_DEFAULTS: JsonCompileOptions = {"whitespace_flexible": False}
"""Compact JSON: a weak model cannot drown in white space, and a third of the tokens is forced."""


def grammar_of(spec: ConstraintSpec, special_tokens: SpecialTokens) -> str:
    """Translate a spec to llguidance's own grammar. Raises InvalidConstraintError."""
    try:
        grammar = grammar_without_prefix(spec, special_tokens)
        return _behind_prefix(spec.prefix, grammar) if spec.prefix else grammar
    except InvalidConstraintError:
        raise
    except (ValueError, RecursionError) as error:
        raise InvalidConstraintError(str(error)) from error


def grammar_to_compile(spec: ConstraintSpec, special_tokens: SpecialTokens) -> str:
    """The same, in a form that the library reads without Python's lock, if it is long.

    It must be valid: what is wrong is said better of the other form.
    """
    if spec.kind == "json_schema" and len(spec.value) > LARGE and not spec.prefix:
        return _lark_of_schema(spec)
    return grammar_of(spec, special_tokens)


def grammar_without_prefix(spec: ConstraintSpec, special_tokens: SpecialTokens) -> str:
    """The same, of what follows the spec's prefix; what is wrong may also raise ValueError."""
    match spec.kind:
        case "json_schema":
            return _json_grammar(compiled_schema(spec), spec)
        case "json_object":
            return _json_grammar(ExactSchema('{"type": "object"}'), spec)
        case "regex":
            return _regex_grammar(spec.value)
        case "choice":
            # As alternatives of a Lark rule, compiling takes the square of their number.
            return _regex_grammar("|".join(map(re.escape, read_choices(spec.value))))
        case "grammar":
            return exact_grammar(_text_grammar(spec.value))
        case "text":
            return _regex_grammar("(?s:.*)")
        case "structural_tag":
            return _tag_grammar(spec, special_tokens)


def _behind_prefix(prefix: str, grammar: str) -> str:
    """Put a fixed text in front: the grammar becomes one that a new first grammar refers to.

    So it keeps its own options and lexemes: what its `%ignore` says does not touch the prefix.
    """
    whole = json.loads(grammar) if _is_json_form(grammar) else {"grammars": [_lark(grammar)]}
    match whole.get("grammars"):
        case [{**body}, *others] if all(isinstance(other, dict) for other in others):
            pass
        case _:
            raise InvalidConstraintError("the JSON form of a grammar has a list `grammars`")
    name = body.get("name")
    if not (isinstance(name, str) and GRAMMAR_NAME.fullmatch(name)):  # nobody can refer to it
        taken = {other.get("name") for other in others}
        name = next(name for name in map("body{}".format, count()) if name not in taken)
    # JSON's escapes for all but ASCII are Lark's as well.
    first = _lark(f"start: {json.dumps(prefix)} @{name}")
    return json.dumps({**whole, "grammars": [first, {**body, "name": name}, *others]})


def _lark(grammar: str) -> dict[str, Any]:
    return {"lark_grammar": grammar}


def compiled_schema(spec: ConstraintSpec) -> ExactSchema:
    """Rewrite a spec's schema to what the library compiles, with the warnings of that.

    Raises InvalidConstraintError with the place of what cannot be enforced.
    """
    exact = exact_schema(spec.value, lenient=spec.lenient)
    plain = plain_schema(exact.text, lenient=spec.lenient)
    return exact._replace(text=plain.text, warnings=(*exact.warnings, *plain.warnings))


def _json_grammar(schema: ExactSchema, spec: ConstraintSpec) -> str:
    """What the request says outranks a schema's own `x-guidance`, which outranks our defaults.

    Whether it is lenient, the request says even if it does not: no schema weakens itself unasked.
    """
    return LLMatcher.grammar_from_json_schema(
        schema.text, defaults=JSON_DEFAULTS, overrides=_overrides(schema, spec)
    )


def _lark_of_schema(spec: ConstraintSpec) -> str:
    """The schema is not parsed here, but for the parts that it has at its top."""
    try:
        schema = compiled_schema(spec)
        parts = msgspec.json.decode(schema.text, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidConstraintError(str(error)) from error
    own = msgspec.json.decode(parts.get("x-guidance", b"null"))
    options = {
        **JSON_DEFAULTS,
        **(own if isinstance(own, dict) else {}),
        **_overrides(schema, spec),
    }
    parts["x-guidance"] = msgspec.Raw(msgspec.json.encode(options))
    return f"start: %json {msgspec.json.encode(parts).decode()}"


def _overrides(schema: ExactSchema, spec: ConstraintSpec) -> JsonCompileOptions:
    overrides: JsonCompileOptions = {"lenient": spec.lenient}
    if schema.escapes is not None:
        overrides["json_allowed_escapes"] = schema.escapes
    if spec.whitespace_pattern is not None:
        overrides["whitespace_pattern"] = spec.whitespace_pattern
    return overrides


def _regex_grammar(pattern: str) -> str:
    return LLMatcher.grammar_from_lark(f"start: {regex_literal(pattern)}")


def _text_grammar(text: str) -> str:
    match grammar_notation(text):
        case "gbnf":
            return LLMatcher.grammar_from_lark(lark_of_gbnf(text))
        case "lark":
            return LLMatcher.grammar_from_lark(text)
        case "llguidance":
            return text


def _tag_grammar(spec: ConstraintSpec, special_tokens: SpecialTokens) -> str:
    tag = tag_grammar(spec, special_tokens)
    grammars = [_lark(tag.lark)]
    for nested in tag.nested:
        if nested.name is None:
            continue
        grammar = grammar_of(nested.spec, special_tokens)
        body = json.loads(grammar)["grammars"][0] if _is_json_form(grammar) else _lark(grammar)
        grammars.append({**body, "name": nested.name})
    return json.dumps({"grammars": grammars})


def _is_json_form(grammar: str) -> bool:
    return grammar.lstrip().startswith("{")
