"""The state of one text in a grammar, by llguidance's matcher."""

from __future__ import annotations

from collections.abc import Sequence as Seq

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from tokenloom_engine.constraints.backends.llguidance.reason import reason
from tokenloom_engine.constraints.base import Captures
from tokenloom_engine.constraints.captures import CaptureReader
from tokenloom_engine.constraints.thermometer import Thermometer

FORCED_TOO_FAR = "; ff_tokens)"
"""In the error of a matcher that met its limit while it looked how far the text is forced."""


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
            return reason(self.matcher.get_error())
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
