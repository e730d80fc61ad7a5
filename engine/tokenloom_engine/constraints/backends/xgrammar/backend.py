"""Constraints by xgrammar: the JSON Schemas that it reads rightly, and choices."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence as Seq
from functools import lru_cache
from typing import cast

from xgrammar import CompiledGrammar, Grammar, GrammarCompiler, GrammarMatcher

from tokenloom_engine.constraints.backends.xgrammar.constraint import XgrammarConstraint
from tokenloom_engine.constraints.backends.xgrammar.supported_schema import SupportedSchema
from tokenloom_engine.constraints.backends.xgrammar.tokenizer import XgrammarTokenizer
from tokenloom_engine.constraints.base import (
    Bitmask,
    Constraint,
    InvalidConstraintError,
    TokenizerFacts,
)
from tokenloom_engine.constraints.choices import read_choices
from tokenloom_engine.constraints.inert_keywords import without_inert_keywords
from tokenloom_engine.constraints.spec import JSON_KINDS, ConstraintKind, ConstraintSpec

MAX_CACHED_GRAMMARS = 64
ANY_TEXT = r"root ::= [\0-\U0010FFFF]*"
ANY_OBJECT = '{"type": "object"}'
PLACE_IN_SOURCE = re.compile(r"^\[[0-9:]+\] \S+:\d+: ")
"""The prefix of the library's messages: a time and a line of its source."""
ANY_WHITESPACE = re.compile(r"(\\s|\[\\s\]|\[(?=.* )(?=.*\\n)(?=.*\\r)(?=.*\\t)( |\\[nrt]){4}\])\*")


class XgrammarBackend:
    """Compiles and steps GrammarMatchers over one tokenizer."""

    kinds = JSON_KINDS.union(frozenset[ConstraintKind](("choice", "text")))

    def __init__(self, facts: TokenizerFacts) -> None:
        self._tokenizer = XgrammarTokenizer(facts)
        # Masks are computed when first needed: all in advance, one schema can take many seconds.
        self._compiler = GrammarCompiler(
            self._tokenizer.info,
            max_threads=1,
            cache_enabled=False,
            enable_dynamic_compilation=True,
        )
        self._compile = lru_cache(MAX_CACHED_GRAMMARS)(self._compile_grammar)

    def validate(self, spec: ConstraintSpec) -> list[str]:
        """See ConstraintBackend."""
        _, warnings = self._compile(spec)
        return list(warnings)

    def create(self, spec: ConstraintSpec) -> Constraint:
        """See ConstraintBackend."""
        grammar, _ = self._compile(spec)
        return XgrammarConstraint(GrammarMatcher(grammar), self._tokenizer.eos_token_ids)

    def fill_bitmasks(self, rows: Seq[tuple[Constraint, int]], bitmask: Bitmask) -> None:
        """See ConstraintBackend. One by one: a thread costs more than most masks do."""
        for constraint, row in rows:
            cast(XgrammarConstraint, constraint).fill_bitmask(bitmask, row)

    def _compile_grammar(self, spec: ConstraintSpec) -> tuple[CompiledGrammar, tuple[str, ...]]:
        grammar, warnings = _grammar(spec)
        if spec.prefix:
            grammar = Grammar.concat(_one_of([spec.prefix]), grammar)
        return self._compiler.compile_grammar(grammar), tuple(warnings)


def _grammar(spec: ConstraintSpec) -> tuple[Grammar, list[str]]:
    """Return the grammar and warnings. Raise InvalidConstraintError with the reason."""
    match spec.kind:
        case "json_schema":
            supported = SupportedSchema(without_inert_keywords(spec.value), lenient=spec.lenient)
            schema = json.dumps(supported.schema)
            return _json_grammar(schema, spec.whitespace_pattern), supported.warnings
        case "json_object":
            return _json_grammar(ANY_OBJECT, spec.whitespace_pattern), []
        case "choice":
            return _one_of(read_choices(spec.value)), []
        case "text":
            return Grammar.from_ebnf(ANY_TEXT), []
        case _:
            raise InvalidConstraintError(f"xgrammar does not compile the type {spec.kind}")


def _json_grammar(schema: str, whitespace_pattern: str | None) -> Grammar:
    if whitespace_pattern is not None and not ANY_WHITESPACE.fullmatch(whitespace_pattern):
        raise InvalidConstraintError(
            f"whitespace_pattern {whitespace_pattern!r} is not supported by xgrammar, only any "
            r"whitespace, [ \n\r\t]*; llguidance supports it: "
            "--constraint-backend json_schema=llguidance,json_object=llguidance"
        )
    try:
        return Grammar.from_json_schema(
            schema,
            any_whitespace=whitespace_pattern is not None,
            separators=(",", ":"),
            strict_mode=False,
        )
    except (RuntimeError, ValueError) as error:
        reason = PLACE_IN_SOURCE.sub("", str(error)).strip()
        raise InvalidConstraintError(reason or type(error).__name__) from error


def _one_of(texts: Seq[str]) -> Grammar:
    literals = ("".join(f"\\U{ord(character):08X}" for character in text) for text in texts)
    return Grammar.from_ebnf("root ::= " + " | ".join(f'"{literal}"' for literal in literals))
