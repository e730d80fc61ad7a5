"""Reads the temperature that a grammar sets in its present state."""

from __future__ import annotations

from collections.abc import Sequence as Seq

import msgspec
from llguidance import LLInterpreter, LLMatcher, LLParserLimits, LLTokenizer

from tokenloom_engine.constraints.base import InvalidConstraintError
from tokenloom_engine.constraints.latency import Latency
from tokenloom_engine.constraints.temperature_scale import TemperatureScale


class Thermometer:
    """An interpreter that goes the way of a constraint's matcher, one mask a token behind it.

    Only the interpreter tells temperatures, but it can neither go back nor be asked for forced
    tokens, so it cannot stand in for the matcher.
    """

    def __init__(
        self,
        tokenizer: LLTokenizer,
        scale: TemperatureScale,
        limits: LLParserLimits,
        latency: Latency,
    ) -> None:
        """Compile. Raises InvalidConstraintError."""
        _check_compiles_soon(tokenizer, scale.grammar, limits, latency)
        self._latency = latency
        self._tokenizer = tokenizer
        self._scale = scale
        self._limits = limits
        self._initial = LLInterpreter(
            tokenizer,
            scale.grammar,
            enable_backtrack=False,
            enable_ff_tokens=False,
            log_level=0,
            limits=limits,
        )
        self._interpreter = self._initial.deep_copy()
        self._ids: list[int] = []
        """What the interpreter accepted."""
        self._is_masked = False
        """Whether it computed the mask of its present state, as it must before it accepts."""
        self.temperature: float | None = None
        """That of the state of the last `read`."""
        self.error: str | None = None
        """Why nothing can be read any more."""

    def fork(self) -> Thermometer:
        """Another one, which shares nothing with this one and was not read yet."""
        return Thermometer(self._tokenizer, self._scale, self._limits, self._latency)

    def read(self, ids: Seq[int]) -> None:
        """Set `temperature` to that of the state after these tokens. Mostly without the GIL."""
        known = len(self._ids)
        if list(ids[:known]) != self._ids:
            self._interpreter = self._initial.deep_copy()
            self._ids, known, self._is_masked = [], 0, False
        try:
            for id in ids[known:]:
                self._mask()
                self._interpreter.commit_token(id)
                self._ids.append(id)
                self._is_masked = False
            self._mask()
        except ValueError as error:
            self.error = f"its temperature is not known: {error}"

    def _mask(self) -> None:
        if self._is_masked:
            return
        _, report = self._interpreter.compute_mask()
        mark = msgspec.json.decode(report, type=_Report).temperature
        self.temperature = self._scale.temperatures[round(mark)]
        self._is_masked = True


class _Report(msgspec.Struct):
    """What the interpreter says of its state, as far as it matters here."""

    temperature: float


def _check_compiles_soon(
    tokenizer: LLTokenizer, grammar: str, limits: LLParserLimits, latency: Latency
) -> None:
    """A matcher takes as long as an interpreter, but without the GIL."""
    for _ in range(2):  # once may be the machine's fault
        begun = latency.clock.begin()
        matcher = LLMatcher(tokenizer, grammar, log_level=0, limits=limits)
        seconds = latency.clock.end(begun)
        if matcher.is_error():
            reason = matcher.get_error()
            raise InvalidConstraintError(f"its temperatures cannot be followed: {reason}")
        if seconds <= latency.limits.temperature_grammar:
            return
    raise InvalidConstraintError("it is too large for a grammar that sets temperatures")
