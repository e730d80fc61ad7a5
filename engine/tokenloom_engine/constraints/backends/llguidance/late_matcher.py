"""A matcher that may be late."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence as Seq

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from tokenloom_engine.constraints.backends.llguidance.aside import Aside
from tokenloom_engine.constraints.backends.llguidance.cost import Cost
from tokenloom_engine.constraints.backends.llguidance.reason import reason
from tokenloom_engine.constraints.backends.llguidance.recollection import Recollection
from tokenloom_engine.constraints.latency import Latency

FORCED_TOO_FAR = "; ff_tokens)"
"""In the error of a matcher that met its limit while it looked how far the text is forced."""
MAX_TOKENS = re.compile(r"max_tokens\"?\s*[=:](?!\s*null)")
"""In a grammar that limits a rule's tokens."""


class LateMatcher:
    """An LLMatcher, and what it is still to accept.

    The library keeps Python's lock while a matcher accepts tokens. So one that is dear puts off
    what it accepts, until its next mask is filled.
    """

    def __init__(
        self,
        tokenizer: LLTokenizer,
        grammar: str,
        limits: LLParserLimits,
        aside: Aside,
        latency: Latency,
    ) -> None:
        """Compile. What is wrong with the grammar is in `error`: the library never raises."""
        self.tokenizer = tokenizer
        self.grammar = grammar
        self._limits = limits
        self._aside = aside
        self._latency = latency
        # LLMatcher's own rollback leaves captures behind, and refuses where `max_tokens` is set.
        self.goes_back = "capture" not in grammar and not MAX_TOKENS.search(grammar)
        """Whether tokens can be taken back without coming again from an earlier state."""
        self.cost = Cost(latency, goes_back=self.goes_back)
        start = time.perf_counter()
        self._initial = LLMatcher(tokenizer, grammar, log_level=0, limits=limits)
        """Never moves. The matchers copied from it share its lexer, one after the other."""
        self.cost.count_compilation(time.perf_counter() - start)
        self._past = Recollection(self._initial, latency, follows=not self.goes_back)
        self.matcher = self._initial.deep_copy()
        """As it is now; but what was put off, it does not know yet."""
        self.accepted: list[int] = []
        self._put_off: list[int] = []
        """The last of them, if the matcher does not know them yet."""

    def __del__(self) -> None:
        """Whoever drops a sequence, or a spec with all its constraints, is not to wait for it."""
        if self.cost.is_weighty:
            self._aside.leave((self.matcher, self._past.matcher, self._initial))

    @property
    def error(self) -> str | None:
        """Why it cannot go on, once it came to that."""
        if self.matcher.is_error() and not self._put_off:
            return reason(self.matcher.get_error())
        return None

    @property
    def is_stopped(self) -> bool:
        """Whether nothing but the end can follow, once it came to that."""
        return self.matcher.is_stopped() and not self._put_off

    def accept(self, ids: Seq[int]) -> bool:
        """Advance, now or later. False if it is known that a token was not allowed."""
        self.accepted += ids
        if self.cost.is_dear:
            self._put_off += ids
            return True
        begun = self.cost.begin()
        is_accepted = self.matcher.consume_tokens(list(ids))
        if not is_accepted and FORCED_TOO_FAR in self.matcher.get_error():
            self._put_off = list(ids)
            self.cost.calls.mark_slow()
            return True
        self._past.follow(self.accepted)
        self.cost.end(begun)
        return is_accepted

    def settle(self) -> None:
        """Accept what was put off."""
        if not self._put_off:
            return
        start = time.perf_counter()
        ids, self._put_off = self._put_off, []
        if not self._aside.accept(self.matcher, ids):
            self._accept_again()
        self.cost.count_aside((time.perf_counter() - start) / len(ids))

    def rollback(self, count: int) -> None:
        """Take back the last so many tokens."""
        kept = self.accepted[:-count]
        known = len(self.accepted) - len(self._put_off)
        # LLMatcher's own rollback goes wrong over an EOS token that a grammar names, too.
        has_eos = not set(self.tokenizer.eos_tokens).isdisjoint(self.accepted[-count:])
        self._put_off = kept[known:]
        if len(kept) < known or self.matcher.is_error():
            self._put_off = []
            can_go_back = self.goes_back and not has_eos
            if can_go_back and self.matcher.rollback(known - len(kept)):
                self._past.forget()
            else:
                self.matcher = self.at(kept)
            self.cost.forget()
        self.accepted = kept

    def reset(self) -> None:
        """Go back to the start."""
        self.matcher = self._initial.deep_copy()
        self._past.forget()
        self.accepted, self._put_off = [], []
        self.cost.forget()

    def at(self, accepted: list[int]) -> LLMatcher:
        """A matcher that accepted these tokens and no more. Raises TooFarError.

        The one that goes on may have run ahead, over text that must follow.
        """
        return self._past.behind(accepted)

    def fresh(self) -> LateMatcher:
        """Another one at the start, which shares nothing with this one."""
        return LateMatcher(self.tokenizer, self.grammar, self._limits, self._aside, self._latency)

    def _accept_again(self) -> None:
        """Go on where what is forced is longer than the limit, or endless: that is no fault of the
        tokens before it.
        """
        if FORCED_TOO_FAR not in self.matcher.get_error():
            return
        self.matcher, ids = self._past.last(self.accepted)
        self._aside.accept(self.matcher, ids)
        self._past.keep(self.matcher.deep_copy(), len(self.accepted))
