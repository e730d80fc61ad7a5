"""Constraints by llguidance: JSON Schema, regular expressions, choices, Lark and GBNF grammars."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence as Seq
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from itertools import count
from typing import TYPE_CHECKING, Any, cast

import msgspec
from llguidance import (
    LLExecutor,
    LLMatcher,
    LLParserLimits,
    LLTokenizer,
    grammar_from,
)
from llguidance.numpy import fill_next_token_bitmask, fill_next_token_bitmask_par

from tokenloom_engine.constraints.base import (
    Bitmask,
    Captures,
    Constraint,
    ConstraintBackend,
    InvalidConstraintError,
    TokenizerFacts,
)
from tokenloom_engine.constraints.captures import CaptureReader
from tokenloom_engine.constraints.config import ConstraintConfig
from tokenloom_engine.constraints.lark import sets_temperature
from tokenloom_engine.constraints.left_out import with_places
from tokenloom_engine.constraints.notation import grammar_notation
from tokenloom_engine.constraints.spec import ConstraintKind, ConstraintSpec
from tokenloom_engine.constraints.special_tokens import SpecialTokens
from tokenloom_engine.constraints.tag_grammar import tag_grammar
from tokenloom_engine.constraints.temperature_scale import TemperatureScale
from tokenloom_engine.constraints.thermometer import Thermometer

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions


GRAMMAR_NAME = re.compile(r"[A-Za-z0-9_-]+")
"""The names by which one grammar of the JSON form can refer to another."""
JSON_DEFAULTS: JsonCompileOptions = {"whitespace_flexible": False}
"""Compact JSON: a weak model cannot drown in white space, and a third of the tokens is forced."""
TRACE = re.compile(r"\n<(?:non-verbose/|backtrace)>")
"""Where a reason ends and the library's own affairs begin."""
REASONS = {"NoExtensionBias": "no text matches it"}
"""What some of the library's reasons mean."""
FEW_ROWS = 8
"""So many masks are filled sooner one after the other: the library's threads want to be woken, and
go on to take the model's time while they look for more."""
FORCED_TOO_FAR = "; ff_tokens)"
"""In the error of a matcher that met its limit while it looked how far the text is forced."""


class AddedToken(msgspec.Struct):
    """An entry of a tokenizer.json's `added_tokens`."""

    id: int
    content: str


class AddedTokens(msgspec.Struct):
    """What we read of a tokenizer.json."""

    added_tokens: list[AddedToken] = []


class LlguidanceConstraint:
    """One LLMatcher."""

    def __init__(self, tokenizer: LLTokenizer, grammar: str, limits: LLParserLimits) -> None:
        """Compile. What is wrong with the grammar is in `error`: the library never raises."""
        self._tokenizer = tokenizer
        self._grammar = grammar
        self._limits = limits
        self._accepted: list[int] = []
        self._captures = CaptureReader(grammar) if "capture" in grammar else None
        self._initial = LLMatcher(tokenizer, grammar, log_level=0, limits=limits)
        """Never moves. The matchers copied from it share its lexer, one after the other."""
        self.matcher = self._initial.deep_copy()
        self._saved = self._initial, 0
        """A matcher that never met a limit, and how many of the tokens it accepted."""
        self.thermometer: Thermometer | None = None
        """For a grammar that sets temperatures: the matcher cannot tell them."""

    @property
    def error(self) -> str | None:
        """See Constraint."""
        if self.matcher.is_error():
            return _reason(self.matcher.get_error())
        return self.thermometer.error if self.thermometer is not None else None

    @property
    def is_accepting(self) -> bool:
        """See Constraint."""
        return self.matcher.is_accepting()

    @property
    def is_terminated(self) -> bool:
        """See Constraint."""
        return self.matcher.is_stopped()

    @property
    def temperature(self) -> float | None:
        """See Constraint."""
        return self.thermometer.temperature if self.thermometer is not None else None

    def read_temperature(self) -> None:
        """Let `temperature` be that of the present state."""
        if self.thermometer is not None:
            self.thermometer.read(self._accepted)

    def accept_tokens(self, ids: Seq[int]) -> bool:
        """See Constraint."""
        self._accepted += ids
        if self.matcher.consume_tokens(list(ids)):
            return True
        return FORCED_TOO_FAR in (self.matcher.get_error() or "") and self._accept_again()

    def validate_tokens(self, ids: Seq[int]) -> int:
        """See Constraint."""
        return self.matcher.validate_tokens(list(ids))

    def forced_tokens(self) -> list[int]:
        """See Constraint."""
        return self.matcher.compute_ff_tokens()

    def rollback(self, count: int) -> None:
        """See Constraint."""
        if count > len(self._accepted):
            raise ValueError(f"{len(self._accepted)} tokens were accepted, fewer than {count}")
        if not count or self.matcher.is_error():
            return
        has_eos = not set(self._tokenizer.eos_tokens).isdisjoint(self._accepted[-count:])
        del self._accepted[-count:]
        self._saved = self._initial, 0
        # LLMatcher's own rollback leaves captures behind, goes wrong over an EOS token that a
        # grammar names, and refuses where `max_tokens` is set.
        if self._captures is not None or has_eos or not self.matcher.rollback(count):
            self.matcher = self._initial.deep_copy()
            self.matcher.consume_tokens(self._accepted)

    def reset(self) -> None:
        """See Constraint."""
        self.matcher = self._initial.deep_copy()
        self._saved = self._initial, 0
        self._accepted.clear()

    def fork(self) -> LlguidanceConstraint:
        """See Constraint. (LLMatcher's own copies share one lexer, and their masks take turns.)"""
        twin = LlguidanceConstraint(self._tokenizer, self._grammar, self._limits)
        if self.thermometer is not None:
            twin.thermometer = self.thermometer.fork()
        twin.accept_tokens(self._accepted)
        return twin

    def captures(self) -> Captures:
        """See Constraint."""
        if self._captures is None:
            return {}
        if self.matcher.is_stopped():
            return self._captures.read(self.matcher.get_captures(), is_whole=True)
        # The matcher itself may have run ahead, over text that must follow.
        matcher = self._initial.deep_copy()
        matcher.consume_tokens(self._accepted)
        is_whole = matcher.is_accepting()
        if is_whole:  # what could go on is captured when it ends
            matcher.consume_token(self._tokenizer.eos_token)
        return self._captures.read(matcher.get_captures(), is_whole=is_whole)

    def _accept_again(self) -> bool:
        """Go on where what is forced is longer than the limit, or endless: that is no fault of the
        tokens before it.
        """
        matcher, count = self._saved
        self.matcher = matcher.deep_copy()
        accepted = self.matcher.consume_tokens(self._accepted[count:])
        self._saved = self.matcher.deep_copy(), len(self._accepted)
        return accepted


class LlguidanceBackend:
    """Compiles and steps LLMatchers over one tokenizer."""

    def __init__(self, tokenizer: TokenizerFacts, config: ConstraintConfig) -> None:
        self._tokenizer = LLTokenizer(
            tokenizer.json, n_vocab=tokenizer.vocab_size, eos_token=list(tokenizer.eos_token_ids)
        )
        self._special_tokens = self._find_special_tokens(tokenizer.json)
        self._num_threads = tokenizer.num_threads
        self._thermometers = ThreadPoolExecutor(
            tokenizer.num_threads, thread_name_prefix="thermometer"
        )
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
            raise InvalidConstraintError(_reason(messages[0]))
        self._thermometer(spec)
        if spec.kind == "json_schema":
            return with_places(spec.value, messages)
        return messages if warnings is None else warnings

    def create(self, spec: ConstraintSpec) -> Constraint:
        """See ConstraintBackend."""
        limits = self._limits(spec.kind)
        constraint = LlguidanceConstraint(self._tokenizer, self._grammar(spec), limits)
        if constraint.error is not None:
            raise InvalidConstraintError(constraint.error)
        constraint.thermometer = self._thermometer(spec)
        return constraint

    def fill_bitmasks(self, rows: Seq[tuple[Constraint, int]], bitmask: Bitmask) -> None:
        """See ConstraintBackend."""
        constraints = [cast(LlguidanceConstraint, constraint) for constraint, _ in rows]
        matchers = [(c.matcher, row) for c, (_, row) in zip(constraints, rows, strict=True)]
        if len(matchers) <= FEW_ROWS:
            for matcher, row in matchers:
                fill_next_token_bitmask(matcher, bitmask, row)
        else:
            fill_next_token_bitmask_par(self._executor, matchers, bitmask)
        hot = [constraint for constraint in constraints if constraint.thermometer is not None]
        list(self._thermometers.map(LlguidanceConstraint.read_temperature, hot))

    def _grammar(self, spec: ConstraintSpec) -> str:
        return grammar_of(spec, self._special_tokens)

    def _thermometer(self, spec: ConstraintSpec) -> Thermometer | None:
        """For a valid grammar, if it sets temperatures. Raises InvalidConstraintError."""
        if not sets_temperature(spec):
            return None
        try:
            grammar = _grammar_without_prefix(spec, self._special_tokens)
            scale = TemperatureScale.of(grammar, spec.prefix, self._are_nullable)
        except (ValueError, RecursionError) as error:
            raise InvalidConstraintError(str(error)) from error
        limits = self._limits(spec.kind)
        return None if scale is None else Thermometer(self._tokenizer, scale, limits)

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
                raise InvalidConstraintError(f"{nested.path}: {error}") from error
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


def create_backend(tokenizer: TokenizerFacts, config: ConstraintConfig) -> ConstraintBackend:
    """See `backends`."""
    return LlguidanceBackend(tokenizer, config)


def grammar_of(spec: ConstraintSpec, special_tokens: SpecialTokens) -> str:
    """Translate a spec to llguidance's own grammar. Raises InvalidConstraintError."""
    try:
        grammar = _grammar_without_prefix(spec, special_tokens)
        return _behind_prefix(spec.prefix, grammar) if spec.prefix else grammar
    except (ValueError, RecursionError) as error:
        raise InvalidConstraintError(str(error)) from error


def _grammar_without_prefix(spec: ConstraintSpec, special_tokens: SpecialTokens) -> str:
    match spec.kind:
        case "json_schema":
            return _json_grammar(spec.value, spec)
        case "json_object":
            return _json_grammar('{"type": "object"}', spec)
        case "regex":
            return LLMatcher.grammar_from_regex(spec.value)
        case "choice":
            # As alternatives of a Lark rule, compiling takes the square of their number.
            return LLMatcher.grammar_from_regex("|".join(map(re.escape, _choices(spec.value))))
        case "grammar":
            return grammar_from(grammar_notation(spec.value), spec.value)
        case "text":
            return LLMatcher.grammar_from_regex("(?s:.*)")
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


def _json_grammar(schema: str, spec: ConstraintSpec) -> str:
    """What the request says outranks a schema's own `x-guidance`, which outranks our defaults.

    Whether it is lenient, the request says even if it does not: no schema weakens itself unasked.
    """
    overrides: JsonCompileOptions = {"lenient": spec.lenient}
    if spec.whitespace_pattern is not None:
        overrides["whitespace_pattern"] = spec.whitespace_pattern
    return LLMatcher.grammar_from_json_schema(schema, defaults=JSON_DEFAULTS, overrides=overrides)


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


def _choices(value: str) -> list[str]:
    choices = json.loads(value)
    if not isinstance(choices, list) or not choices:
        raise InvalidConstraintError("a choice needs at least one string")
    if not all(isinstance(choice, str) for choice in choices):
        raise InvalidConstraintError("a choice is among strings")
    return choices


def _is_json_form(grammar: str) -> bool:
    return grammar.lstrip().startswith("{")


def _reason(message: str) -> str:
    reason = TRACE.split(message)[0].strip()
    return REASONS.get(reason, reason) or "unknown error"
