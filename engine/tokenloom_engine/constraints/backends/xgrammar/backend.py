"""Constraints by xgrammar: JSON Schema, regular expressions, choices, grammars, structural tags."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import cast

from xgrammar import GrammarMatcher

from tokenloom_engine.constraints.backends.xgrammar.compiler import XgrammarCompiler
from tokenloom_engine.constraints.backends.xgrammar.constraint import XgrammarConstraint
from tokenloom_engine.constraints.backends.xgrammar.source import SourceReader
from tokenloom_engine.constraints.backends.xgrammar.special_tokens import special_token_ids
from tokenloom_engine.constraints.backends.xgrammar.tokenizer import XgrammarTokenizer
from tokenloom_engine.constraints.base import Bitmask, Constraint, TokenizerFacts
from tokenloom_engine.constraints.spec import ConstraintSpec


class XgrammarBackend:
    """Compiles and steps GrammarMatchers over one tokenizer."""

    def __init__(self, facts: TokenizerFacts) -> None:
        special_tokens = special_token_ids(facts.json).keys()
        self._tokenizer = XgrammarTokenizer(facts)
        self._sources = SourceReader(special_tokens)
        self._compiler = XgrammarCompiler(self._tokenizer.info, special_tokens)

    def validate(self, spec: ConstraintSpec) -> list[str]:
        """See ConstraintBackend."""
        source = self._sources.read(spec)
        self._compiler.compile(source)
        return list(source.warnings)

    def create(self, spec: ConstraintSpec) -> Constraint:
        """See ConstraintBackend."""
        compiled = self._compiler.compile(self._sources.read(spec))
        matcher = GrammarMatcher(compiled.grammar)
        return XgrammarConstraint(matcher, self._tokenizer, can_force=compiled.can_force)

    def fill_bitmasks(self, rows: Seq[tuple[Constraint, int]], bitmask: Bitmask) -> None:
        """See ConstraintBackend. One by one: a thread costs more than most masks do."""
        for constraint, row in rows:
            own = cast(XgrammarConstraint, constraint)
            try:
                if own.has_ended:
                    own.fill_end(bitmask[row])
                else:
                    own.matcher.fill_next_token_bitmask(bitmask, row)
            except RuntimeError as error:
                own.error = f"the matcher failed: {type(error).__name__}"
