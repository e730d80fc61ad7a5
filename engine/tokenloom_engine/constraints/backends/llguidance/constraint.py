"""The state of one text in a grammar, by llguidance's matcher."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Sequence as Seq

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from tokenloom_engine.constraints.backends.llguidance.aside import Aside
from tokenloom_engine.constraints.backends.llguidance.reason import reason
from tokenloom_engine.constraints.backends.llguidance.recollection import (
    Recollection,
    TooFarError,
)
from tokenloom_engine.constraints.base import Bitmask, Captures
from tokenloom_engine.constraints.captures import CaptureReader
from tokenloom_engine.constraints.outlook import BITS
from tokenloom_engine.constraints.thermometer import Thermometer

logger = logging.getLogger(__name__)

FORCED_TOO_FAR = "; ff_tokens)"
"""In the error of a matcher that met its limit while it looked how far the text is forced."""
MAX_TOKENS = re.compile(r"max_tokens\"?\s*[=:](?!\s*null)")
"""In a grammar that limits a rule's tokens."""
CALL_SECONDS = 0.0005
"""A call that took longer, the thread of all sequences makes no more: ordinary grammars take 0.3 ms
at most. What a call costs hardly depends on how many tokens it accepts."""
LOOK_SECONDS = 0.0002
"""After a call that took longer, nobody looks at tokens that may follow it."""
NEAR_SECONDS = 0.00003
"""The same where going back means to come again from some tokens before."""
MASK_SECONDS = 0.001
"""After a mask that took longer, accepting a token may, too."""
FORCED_SECONDS = 0.002
"""The same of a mask of one token, the first of a run that is forced."""
LONG_TEXT_SECONDS = 0.004
"""The same where the run is long, which is no fault."""


class LlguidanceConstraint:
    """One LLMatcher.

    The library keeps Python's lock while a matcher accepts tokens, or tells forced ones. So one
    that is dear puts off what it accepts until its next mask is filled, and then says no more
    tokens to be forced than the mask does: one.
    """

    def __init__(
        self, tokenizer: LLTokenizer, grammar: str, limits: LLParserLimits, aside: Aside
    ) -> None:
        """Compile. What is wrong with the grammar is in `error`: the library never raises."""
        self._tokenizer = tokenizer
        self._grammar = grammar
        self._limits = limits
        self._aside = aside
        self._captures = CaptureReader(grammar) if "capture" in grammar else None
        self._initial = LLMatcher(tokenizer, grammar, log_level=0, limits=limits)
        """Never moves. The matchers copied from it share its lexer, one after the other."""
        # LLMatcher's own rollback leaves captures behind, and refuses where `max_tokens` is set.
        goes_back = self._captures is None and not MAX_TOKENS.search(grammar)
        self._past = Recollection(self._initial, follows=not goes_back)
        self.thermometer: Thermometer | None = None
        """For a grammar that sets temperatures: the matcher cannot tell them."""
        self._matcher = self._initial.deep_copy()
        self._accepted: list[int] = []
        self._put_off: list[int] = []
        """The last of them, if the matcher does not know them yet."""
        self._forced: list[int] = []
        """What is known to follow."""
        self._is_dear = False
        self._call_seconds = 0.0
        """What the last call took that accepted tokens or told forced ones."""

    @property
    def error(self) -> str | None:
        """See Constraint."""
        if self._matcher.is_error() and not self._put_off:
            return reason(self._matcher.get_error())
        return self.thermometer.error if self.thermometer is not None else None

    @property
    def is_dear(self) -> bool:
        """See Constraint."""
        return self._is_dear

    @property
    def is_accepting(self) -> bool:
        """See Constraint."""
        self._settle()
        return self._matcher.is_accepting()

    @property
    def is_terminated(self) -> bool:
        """See Constraint."""
        return self._matcher.is_stopped() and not self._put_off

    @property
    def temperature(self) -> float | None:
        """See Constraint."""
        return self.thermometer.temperature if self.thermometer is not None else None

    @property
    def matcher(self) -> LLMatcher:
        """What fills its masks, unless `fill_known` does."""
        return self._matcher

    def fill_known(self, bitmask: Bitmask, row: int) -> bool:
        """Write what is allowed if that is known already; else get ready to find out."""
        self._settle()
        if self._forced:
            _allow_only(self._forced[0], bitmask, row)
        return bool(self._forced)

    def learn(self, seconds: float, bitmask: Bitmask, row: int) -> None:
        """See what the mask that was just filled says of accepting the next token."""
        is_dear = self._call_seconds > CALL_SECONDS
        self._is_dear = is_dear or seconds > MASK_SECONDS
        if not self._is_dear or self._matcher.is_stopped():
            return
        allowed = np.flatnonzero(np.unpackbits(bitmask[row].view(np.uint8), bitorder="little"))
        if len(allowed) > 1:
            return
        self._forced = [int(id) for id in allowed]
        if is_dear or seconds > LONG_TEXT_SECONDS:
            return
        start = time.thread_time()
        forced = self._matcher.compute_ff_tokens()
        # Where the text is long, and no more than that, most of the time makes tokens of it.
        if seconds < FORCED_SECONDS or time.thread_time() - start > seconds / 4:
            self._is_dear, self._forced = False, forced

    def read_temperature(self) -> None:
        """Let `temperature` be that of the present state."""
        if self.thermometer is not None:
            self.thermometer.read(self._accepted)

    def accept_tokens(self, ids: Seq[int]) -> bool:
        """See Constraint."""
        self._accepted += ids
        is_forced = list(ids) == self._forced[: len(ids)]
        self._forced = self._forced[len(ids) :] if is_forced else []
        if self._is_dear:
            self._put_off += ids
            return True
        start = time.thread_time()
        is_accepted = self._matcher.consume_tokens(list(ids))
        if not is_accepted and FORCED_TOO_FAR in self._matcher.get_error():
            self._put_off, self._is_dear = list(ids), True
            return True
        self._past.follow(self._accepted)
        self._count_call(start)
        return is_accepted

    def validate_tokens(self, ids: Seq[int], *, briefly: bool = False) -> int:
        """See Constraint."""
        if briefly:
            return self._glance(ids)
        self._settle()
        return self._matcher.validate_tokens(list(ids))

    def forced_tokens(self) -> list[int]:
        """See Constraint."""
        if not self._forced and not self._is_dear:
            start = time.thread_time()
            self._forced = self._matcher.compute_ff_tokens()
            self._count_call(start)
        return list(self._forced)

    def rollback(self, count: int) -> None:
        """See Constraint."""
        if count > len(self._accepted):
            raise ValueError(f"{len(self._accepted)} tokens were accepted, fewer than {count}")
        if not count or self.error is not None:
            return
        has_eos = not set(self._tokenizer.eos_tokens).isdisjoint(self._accepted[-count:])
        self._forced = []
        kept = self._accepted[:-count]
        # LLMatcher's own rollback goes wrong over an EOS token that a grammar names, too.
        known = len(self._accepted) - len(self._put_off)
        self._put_off = kept[known:]
        if len(kept) < known or self._matcher.is_error():
            self._put_off = []
            can_go_back = not (self._past.follows or has_eos)
            if can_go_back and self._matcher.rollback(known - len(kept)):
                self._past.forget()
            else:
                self._matcher = self._past.behind(kept)
            self._is_dear, self._call_seconds = False, 0.0  # that was another state
        self._accepted = kept

    def reset(self) -> None:
        """See Constraint."""
        self._matcher = self._initial.deep_copy()
        self._past.forget()
        self._accepted, self._put_off, self._forced = [], [], []
        self._is_dear, self._call_seconds = False, 0.0

    def fork(self) -> LlguidanceConstraint:
        """See Constraint. (LLMatcher's own copies share one lexer, and their masks take turns.)"""
        twin = LlguidanceConstraint(self._tokenizer, self._grammar, self._limits, self._aside)
        if self.thermometer is not None:
            twin.thermometer = self.thermometer.fork()
        twin.accept_tokens(self._accepted)
        return twin

    def captures(self) -> Captures:
        """See Constraint."""
        if self._captures is None:
            return {}
        if self.is_terminated:
            return self._captures.read(self._matcher.get_captures(), is_whole=True)
        # The matcher itself may have run ahead, over text that must follow.
        try:
            matcher = self._past.behind(self._accepted)
        except TooFarError:
            logger.warning("what a grammar captured took too long to find out, and is left out")
            return {}
        is_whole = matcher.is_accepting()
        if is_whole:  # what could go on is captured when it ends
            matcher.consume_token(self._tokenizer.eos_token)
        return self._captures.read(matcher.get_captures(), is_whole=is_whole)

    def _glance(self, ids: Seq[int]) -> int:
        """How many of these tokens would be accepted, as far as it can be told in no time."""
        most_seconds = NEAR_SECONDS if self._past.follows else LOOK_SECONDS
        if self._is_dear or self._call_seconds > most_seconds:
            return 0
        count, seconds = 0, 0.0
        while count < len(ids) and seconds < LOOK_SECONDS:
            most = max(1, 2 * count)  # which may take ten times as long
            start = time.thread_time()
            count = self._matcher.validate_tokens(list(ids[:most]))
            seconds = time.thread_time() - start
            if count < most:
                break
        return count

    def _settle(self) -> None:
        """Accept what was put off."""
        if not self._put_off:
            return
        start = time.perf_counter()
        ids, self._put_off = self._put_off, []
        if not self._aside.accept(self._matcher, ids):
            self._accept_again()  # for which Python's lock is kept
        self._call_seconds = (time.perf_counter() - start) / len(ids)

    def _count_call(self, start: float) -> None:
        """Learn from a call that began then, by this thread's CPU time: others may be busy."""
        self._call_seconds = time.thread_time() - start
        self._is_dear |= self._call_seconds > CALL_SECONDS

    def _accept_again(self) -> bool:
        """Go on where what is forced is longer than the limit, or endless: that is no fault of the
        tokens before it.
        """
        if FORCED_TOO_FAR not in (self._matcher.get_error() or ""):
            return False
        self._matcher, ids = self._past.last(self._accepted)
        is_accepted = self._matcher.consume_tokens(ids)
        self._past.keep(self._matcher.deep_copy(), len(self._accepted))
        return is_accepted


def _allow_only(id: int, bitmask: Bitmask, row: int) -> None:
    bitmask[row] = 0
    bitmask[row, id // 32] = BITS[id % 32]
