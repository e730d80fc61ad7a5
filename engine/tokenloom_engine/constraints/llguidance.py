"""Constraints by llguidance: JSON Schema, regular expressions, choices, Lark and GBNF grammars."""

from __future__ import annotations

import json
from collections.abc import Sequence as Seq
from typing import TYPE_CHECKING, cast

from llguidance import (
    LLExecutor,
    LLMatcher,
    LLParserLimits,
    LLTokenizer,
    grammar_from,
)
from llguidance.numpy import fill_next_token_bitmask_par

from tokenloom_engine.constraints.base import Bitmask, Constraint, InvalidConstraintError
from tokenloom_engine.constraints.spec import ConstraintSpec

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

LIMITS = LLParserLimits(
    # An ambiguous grammar may make a mask a hundred times dearer; past these its row fails.
    step_max_items=5_000,
    max_items_in_row=500,
    # The reason must not carry the client's schema or text into our logs.
    verbose_errors=False,
)
JSON_DEFAULTS: JsonCompileOptions = {"whitespace_flexible": False}
"""Compact JSON: a weak model cannot drown in white space, and a third of the tokens is forced."""


class LlguidanceConstraint:
    """One LLMatcher."""

    def __init__(self, matcher: LLMatcher) -> None:
        self.matcher = matcher

    @property
    def error(self) -> str | None:
        """See Constraint."""
        return (self.matcher.get_error() or "unknown error") if self.matcher.is_error() else None

    @property
    def is_terminated(self) -> bool:
        """See Constraint."""
        return self.matcher.is_stopped()

    def accept_tokens(self, ids: Seq[int]) -> bool:
        """See Constraint."""
        return self.matcher.consume_tokens(list(ids))

    def forced_tokens(self) -> list[int]:
        """See Constraint."""
        return self.matcher.compute_ff_tokens()

    def reset(self) -> None:
        """See Constraint."""
        self.matcher.reset()


class LlguidanceBackend:
    """Compiles and steps LLMatchers over one tokenizer."""

    def __init__(
        self, tokenizer_json: str, vocab_size: int, eos_token_ids: Seq[int], num_threads: int
    ) -> None:
        self._tokenizer = LLTokenizer(
            tokenizer_json, n_vocab=vocab_size, eos_token=sorted(eos_token_ids)
        )
        self._executor = LLExecutor(num_threads)

    def validate(self, spec: ConstraintSpec) -> None:
        """See ConstraintBackend."""
        reason = LLMatcher.validate_grammar(grammar_of(spec), self._tokenizer, limits=LIMITS)
        if reason and not reason.startswith("WARNING"):
            raise InvalidConstraintError(reason)

    def create(self, spec: ConstraintSpec) -> Constraint:
        """See ConstraintBackend."""
        matcher = LLMatcher(self._tokenizer, grammar_of(spec), log_level=0, limits=LIMITS)
        if matcher.is_error():  # the constructor itself never raises
            raise InvalidConstraintError(matcher.get_error())
        return LlguidanceConstraint(matcher)

    def fill_bitmasks(self, rows: Seq[tuple[Constraint, int]], bitmask: Bitmask) -> None:
        """See ConstraintBackend."""
        matchers = [(cast(LlguidanceConstraint, c).matcher, row) for c, row in rows]
        fill_next_token_bitmask_par(self._executor, matchers, bitmask)


def grammar_of(spec: ConstraintSpec) -> str:
    """Translate a spec to llguidance's own grammar. Raises InvalidConstraintError."""
    try:
        match spec.kind:
            case "json_schema":
                return LLMatcher.grammar_from_json_schema(spec.value, defaults=JSON_DEFAULTS)
            case "json_object":
                return LLMatcher.grammar_from_json_schema(
                    '{"type": "object"}', defaults=JSON_DEFAULTS
                )
            case "regex":
                return LLMatcher.grammar_from_regex(spec.value)
            case "choice":
                choices = json.loads(spec.value)
                return grammar_from("choice", json.dumps(choices))
            case "grammar":
                is_gbnf = "::=" in spec.value
                return grammar_from("gbnf" if is_gbnf else "lark", spec.value)
    except (ValueError, RecursionError) as error:
        raise InvalidConstraintError(str(error)) from error
