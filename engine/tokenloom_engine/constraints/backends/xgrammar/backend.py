"""Constraints by xgrammar: JSON Schema, regular expressions, choices, grammars, structural tags."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from functools import cached_property
from typing import cast

from xgrammar import BatchGrammarMatcher, GrammarMatcher

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
        self._num_threads = facts.num_threads

    @cached_property
    def _matchers(self) -> BatchGrammarMatcher:
        """Made when it is first needed: a process that is to fork has no use for its threads."""
        return BatchGrammarMatcher(max_threads=self._num_threads)

    def validate(self, spec: ConstraintSpec) -> list[str]:
        """See ConstraintBackend."""
        source = self._sources.read(spec)
        self._compiler.compile(source)
        return list(source.warnings)

    def create(self, spec: ConstraintSpec) -> Constraint:
        """See ConstraintBackend."""
        grammar = self._compiler.compile(self._sources.read(spec))
        return XgrammarConstraint(GrammarMatcher(grammar), self._tokenizer)

    def fill_bitmasks(self, rows: Seq[tuple[Constraint, int]], bitmask: Bitmask) -> None:
        """See ConstraintBackend."""
        going: list[tuple[XgrammarConstraint, int]] = []
        for constraint, row in rows:
            own = cast(XgrammarConstraint, constraint)
            if own.has_ended:
                own.fill_end(bitmask[row])
            else:
                going.append((own, row))
        try:
            self._fill(going, bitmask)
        except RuntimeError:  # it does not say whose it is
            for own, row in going:
                try:
                    self._fill([(own, row)], bitmask)
                except RuntimeError as error:
                    own.error = f"the matcher failed: {type(error).__name__}"

    def _fill(self, rows: Seq[tuple[XgrammarConstraint, int]], bitmask: Bitmask) -> None:
        if rows:
            matchers = [constraint.matcher for constraint, _ in rows]
            indices = [row for _, row in rows]
            self._matchers.batch_fill_next_token_bitmask(matchers, bitmask, indices)
