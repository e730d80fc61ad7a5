"""From specs, as they were read, to xgrammar's compiled grammars."""

from __future__ import annotations

import re
from collections.abc import Collection
from collections.abc import Sequence as Seq
from functools import lru_cache
from math import inf
from typing import NamedTuple

from xgrammar import CompiledGrammar, Grammar, GrammarCompiler, TokenizerInfo

from tokenloom_engine.constraints.backends.xgrammar.ebnf import literal
from tokenloom_engine.constraints.backends.xgrammar.notes import pattern_name
from tokenloom_engine.constraints.backends.xgrammar.shortest_text import longest_shortest_text
from tokenloom_engine.constraints.backends.xgrammar.source import Source
from tokenloom_engine.constraints.backends.xgrammar.tag import Json, translate_tag
from tokenloom_engine.constraints.base import InvalidConstraintError
from tokenloom_engine.constraints.spec import ConstraintSpec

MAX_CACHED_GRAMMARS = 64
MAX_SHORTEST_TEXT = 20_000
"""Bytes. In grammars with longer ones, or endless ones, no forced text is looked for."""

PLACE_IN_SOURCE = re.compile(r"^\[[0-9:]+\] \S+:\d+: ")
"""What stands before the library's messages."""
LIMITED_CHARACTER = r"[^\"\\\r\n]"
"""A character of a string with a least or greatest length, as the library prints it. It is what
JSON does not allow, raw control characters such as tabs, and no escape. (Within a literal or a
pattern, a quote or a backslash would have another before it.)"""
JSON_CHARACTER = r"[^\0-\x1f\"\\]"
"""One that JSON allows."""
ENDLESS_STRING = re.compile(r'(_characters\{([0-9]+), )-1\} "\\""')
"""A string with a least length only."""
SHORT_BEGINNING = r"\1\2} basic_string_sub"
"""Its beginning, and any other characters and escapes."""


class Compiled(NamedTuple):
    """What came of a spec."""

    grammar: CompiledGrammar
    can_force: bool
    """Whether it is safe to ask for forced text."""


class XgrammarCompiler:
    """Compiles over one tokenizer. Safe in any thread."""

    def __init__(self, tokenizer: TokenizerInfo, special_tokens: Collection[str]) -> None:
        self._tokenizer = tokenizer
        self._special_tokens = special_tokens
        # Masks are made when they are first needed: eagerly, one schema could take many seconds.
        self._compiler = GrammarCompiler(
            tokenizer, max_threads=1, cache_enabled=False, enable_dynamic_compilation=True
        )
        self._compile = lru_cache(MAX_CACHED_GRAMMARS)(self._compile_anew)

    def compile(self, source: Source) -> Compiled:
        """Compile, or find it compiled. Raises InvalidConstraintError with the library's reason."""
        return self._compile(source)

    def _compile_anew(self, source: Source) -> Compiled:
        try:
            grammar = self._grammar(source)
            if source.prefix:
                prefix = Grammar.from_ebnf(f"root ::= {literal(source.prefix)}")
                grammar = Grammar.concat(prefix, grammar)
            can_force = longest_shortest_text(grammar.serialize_json()) <= MAX_SHORTEST_TEXT
            return Compiled(self._compiler.compile_grammar(grammar), can_force)
        except InvalidConstraintError:
            raise
        except (RuntimeError, ValueError) as error:
            reason = PLACE_IN_SOURCE.sub("", str(error)).strip()
            raise InvalidConstraintError(reason or type(error).__name__) from error

    def _grammar(self, source: Source) -> Grammar:
        match source.notation:
            case "json":
                return self._json_grammar(source)
            case "ebnf":
                return Grammar.from_ebnf(source.text)
            case "lark":
                return Grammar.from_lark(source.text, tokenizer_info=self._tokenizer)
            case "tag":
                return self._tag_grammar(source)

    def _json_grammar(self, source: Source) -> Grammar:
        most = source.max_whitespace
        grammar = Grammar.from_json_schema(
            source.text,
            any_whitespace=most > 0,
            separators=(",", ":"),
            strict_mode=False,
            max_whitespace_cnt=None if most in (0, inf) else int(most),
        )
        text = str(grammar)
        if not source.patterns and LIMITED_CHARACTER not in text:
            return grammar
        text = ENDLESS_STRING.sub(SHORT_BEGINNING, text.replace(LIMITED_CHARACTER, JSON_CHARACTER))
        return Grammar.from_ebnf(_with_patterns(text, source.patterns))

    def _tag_grammar(self, source: Source) -> Grammar:
        assert source.tag is not None
        nested = iter(source.nested)

        def nest(_path: str, _spec: ConstraintSpec) -> Json:
            inner = next(nested)
            if inner.notation == "lark":
                return {"type": "grammar", "grammar": inner.text, "syntax": "lark"}
            return {"type": "grammar", "grammar": str(self._grammar(inner))}

        return Grammar.from_structural_tag(translate_tag(source.tag, self._special_tokens, nest))


def _with_patterns(grammar: str, patterns: Seq[str]) -> str:
    """Let the patterns be themselves in a grammar in which other ones stand for them.

    Quotes and pattern become one rule: where xgrammar sees the quote behind it, masks of what a
    string can be are a thousand times faster.
    """
    for index, pattern in enumerate(patterns):
        name, rule = pattern_name(index), f"tokenloom_pattern_{index}"
        standing_in = re.compile(
            rf'^([\w.-]+) ::= Regex\("{re.escape(name)}", json_string=true\)\n?', re.MULTILINE
        )
        for found in standing_in.findall(grammar):
            grammar = grammar.replace(rf'"\"" {found} "\""', rule)
        grammar = standing_in.sub("", grammar)
        grammar = f'{grammar}\n{rule} ::= "\\"" {pattern} "\\""'
        if name in grammar:
            raise InvalidConstraintError("this version of xgrammar cannot do patterns")
    return grammar
