"""The back end over llguidance."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from functools import cached_property
from typing import cast

import msgspec
from llguidance import LLExecutor, LLMatcher, LLParserLimits, LLTokenizer
from llguidance.numpy import fill_next_token_bitmask_par

from tokenloom_engine.constraints.backends.llguidance.aside import Aside
from tokenloom_engine.constraints.backends.llguidance.constraint import LlguidanceConstraint
from tokenloom_engine.constraints.backends.llguidance.grammar import (
    compiled_schema,
    grammar_of,
    grammar_to_compile,
    grammar_without_prefix,
)
from tokenloom_engine.constraints.backends.llguidance.late_matcher import LateMatcher
from tokenloom_engine.constraints.backends.llguidance.reason import reason
from tokenloom_engine.constraints.base import (
    Bitmask,
    Constraint,
    InvalidConstraintError,
    TokenizerFacts,
)
from tokenloom_engine.constraints.config import ConstraintConfig
from tokenloom_engine.constraints.lark import sets_temperature
from tokenloom_engine.constraints.latency import Latency
from tokenloom_engine.constraints.left_out import with_places
from tokenloom_engine.constraints.spec import ALL_KINDS, ConstraintKind, ConstraintSpec
from tokenloom_engine.constraints.special_tokens import SpecialTokens
from tokenloom_engine.constraints.tag_grammar import tag_grammar
from tokenloom_engine.constraints.temperature_scale import TemperatureScale
from tokenloom_engine.constraints.thermometer import Thermometer

STRING_CHARACTER = r'[^"\\\x00-\x1F\x7F]'
SLICES = [
    r"[\x20\x0A\x0D\x09]+",
    *(f"{STRING_CHARACTER}{{1,{most}}}" for most in (10, 15, 20, 30)),
    f"{STRING_CHARACTER}+",
]
"""Kinds of texts whose tokens a mask takes as a whole where a state allows them all. The library's
own ones lack 15 and 20, so that for strings of bounded length it soon goes through more of the
vocabulary."""
FEW_ROWS = 8
"""So many masks are filled sooner one after the other: the library's threads want to be woken, and
go on to take the model's time while they look for more."""


class AddedToken(msgspec.Struct):
    """An entry of a tokenizer.json's `added_tokens`."""

    id: int
    content: str


class AddedTokens(msgspec.Struct):
    """What we read of a tokenizer.json."""

    added_tokens: list[AddedToken] = []


class LlguidanceBackend:
    """Compiles and steps LLMatchers over one tokenizer."""

    kinds = ALL_KINDS

    def __init__(
        self, tokenizer: TokenizerFacts, config: ConstraintConfig, latency: Latency
    ) -> None:
        self._tokenizer = LLTokenizer(
            tokenizer.json,
            n_vocab=tokenizer.vocab_size,
            eos_token=list(tokenizer.eos_token_ids),
            slices=SLICES,
        )
        self._special_tokens = self._find_special_tokens(tokenizer.json)
        self._aside = Aside(self._tokenizer)
        self._latency = latency
        self._num_threads = tokenizer.num_threads
        self._config = config

    @cached_property
    def _executor(self) -> LLExecutor:
        """Made when it is first needed: a process that is to fork has no use for its threads."""
        return LLExecutor(self._num_threads)

    def validate(self, spec: ConstraintSpec) -> list[str]:
        """See ConstraintBackend."""
        warnings = self._validate_nested(spec) if spec.kind == "structural_tag" else None
        is_error, messages = LLMatcher.validate_grammar_with_warnings(
            self._grammar(spec), self._tokenizer, limits=self._limits(spec.kind)
        )
        if is_error:
            pattern = spec.value if spec.kind == "regex" else None
            raise InvalidConstraintError(reason(messages[0], pattern))
        self._thermometer(spec)
        if spec.kind == "json_schema":
            schema = compiled_schema(spec)
            return [*schema.warnings, *with_places(schema.text, messages)]
        return messages if warnings is None else warnings

    def create(self, spec: ConstraintSpec) -> Constraint:
        """See ConstraintBackend."""
        self._aside.clear()  # those that went before; their memory is wanted
        limits = self._limits(spec.kind)
        grammar = grammar_to_compile(spec, self._special_tokens)
        matcher = LateMatcher(self._tokenizer, grammar, limits, self._aside, self._latency)
        constraint = LlguidanceConstraint(matcher)
        if constraint.error is not None:
            raise InvalidConstraintError(constraint.error)
        constraint.thermometer = self._thermometer(spec)
        return constraint

    def fill_bitmasks(self, rows: Seq[tuple[Constraint, int]], bitmask: Bitmask) -> None:
        """See ConstraintBackend."""
        own = [(cast(LlguidanceConstraint, constraint), row) for constraint, row in rows]
        asking = [(c, row) for c, row in own if not c.fill_known(bitmask, row)]
        if len(asking) > FEW_ROWS:
            start = self._latency.clock.wall()
            matchers = [(constraint.matcher, row) for constraint, row in asking]
            fill_next_token_bitmask_par(self._executor, matchers, bitmask)
            average = (self._latency.clock.wall() - start) / len(asking)
            for constraint, row in asking:
                constraint.learn(average, bitmask, row)
        else:
            clock = self._latency.clock
            size, first = bitmask.strides[0], bitmask.ctypes.data
            for constraint, row in asking:
                begun = clock.begin()
                constraint.matcher.unsafe_compute_mask_ptr(first + row * size, size)
                constraint.learn(clock.end(begun), bitmask, row)
        for constraint, _ in own:
            constraint.read_temperature()

    def _grammar(self, spec: ConstraintSpec) -> str:
        return grammar_of(spec, self._special_tokens)

    def _thermometer(self, spec: ConstraintSpec) -> Thermometer | None:
        """For a valid grammar, if it sets temperatures. Raises InvalidConstraintError."""
        if not sets_temperature(spec):
            return None
        try:
            grammar = grammar_without_prefix(spec, self._special_tokens)
            scale = TemperatureScale.of(grammar, spec.prefix, self._are_nullable)
        except (ValueError, RecursionError) as error:
            raise InvalidConstraintError(str(error)) from error
        limits = self._limits(spec.kind)
        if scale is None:
            return None
        return Thermometer(self._tokenizer, scale, limits, self._latency)

    def _are_nullable(self, definitions: str, terminals: list[str]) -> list[bool]:
        """Which of these terminals match the empty text. Raises ValueError."""
        if not terminals:
            return []
        names = [f"terminal{i}" for i in range(len(terminals))]
        # A limit makes a rule's body be read as a terminal.
        rules = [f"{n}[max_tokens=1]: {t}" for n, t in zip(names, terminals, strict=True)]
        grammar = "\n".join([definitions, f"start: {' | '.join(names)}", *rules])
        limits = self._limits("grammar")
        matcher = LLMatcher(self._tokenizer, grammar, log_level=0, limits=limits)
        if matcher.is_error():
            raise ValueError(matcher.get_error())
        if not matcher.is_accepting():
            return [False] * len(terminals)
        if len(terminals) == 1:
            return [True]
        half = len(terminals) // 2
        return [
            *self._are_nullable(definitions, terminals[:half]),
            *self._are_nullable(definitions, terminals[half:]),
        ]

    def _validate_nested(self, spec: ConstraintSpec) -> list[str]:
        """Validate what a structural tag consists of; whatever is said begins with its path."""
        warnings: list[str] = []
        for nested in tag_grammar(spec, self._special_tokens).nested:
            try:
                warnings += [f"{nested.path}: {warning}" for warning in self.validate(nested.spec)]
            except InvalidConstraintError as error:
                raise InvalidConstraintError(
                    f"{nested.path}: {error.reason}", error.place
                ) from error
        return warnings

    def _find_special_tokens(self, tokenizer_json: str) -> SpecialTokens:
        """Those that the library holds to be special: it knows more than the tokenizer's flag."""
        added = msgspec.json.decode(tokenizer_json, type=AddedTokens).added_tokens
        is_special = self._tokenizer.is_special_token
        return SpecialTokens({token.content: token.id for token in added if is_special(token.id)})

    def _limits(self, kind: ConstraintKind) -> LLParserLimits:
        """An ambiguous grammar can make a mask a hundred times dearer; past these its row fails."""
        return LLParserLimits(
            step_max_items=self._config.max_items,
            max_items_in_row=self._config.items_in_row(kind),
            # The reason must not carry the client's schema or text into our logs.
            verbose_errors=False,
        )
