"""What is done to matchers without Python's lock."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Seq
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cached_property
from queue import Empty, SimpleQueue

from llguidance import LLExecutor, LLMatcher, LLTokenizer

from tokenloom_engine.constraints.low_priority import lower_priority

NO_TOKEN = 2**31
"""No grammar allows it."""


class Aside:
    """Lets matchers accept tokens in a thread of low priority, while other threads run Python."""

    def __init__(self, tokenizer: LLTokenizer) -> None:
        # The library gives up the lock for two matchers or more. This one has erred, and so does
        # nothing at all.
        self._nobody = LLMatcher(tokenizer, "{", log_level=0)
        self._left: SimpleQueue[Iterable[LLMatcher]] = SimpleQueue()

    @cached_property
    def _executor(self) -> LLExecutor:
        """Its thread has the priority of the one that makes it."""
        with ThreadPoolExecutor(1, initializer=lower_priority) as threads:
            return threads.submit(LLExecutor, 1).result()

    def accept(self, matcher: LLMatcher, ids: Seq[int]) -> bool:
        """Have a matcher accept tokens, and wait for it. Nobody else may use it meanwhile."""
        nobody = self._nobody.deep_copy()
        return all(self._executor.consume_token_par([(matcher, id), (nobody, id)])[0] for id in ids)

    def leave(self, matchers: Iterable[LLMatcher]) -> None:
        """Take matchers that nobody uses any more, to free them at the next `clear`.

        Python frees large ones for milliseconds, with its lock. Safe in a destructor.
        """
        self._left.put(matchers)

    def clear(self) -> None:
        """Free what was left, and wait for it."""
        with suppress(Empty):
            while True:
                for matcher in self._left.get_nowait():
                    self.accept(matcher, [NO_TOKEN])  # it errs, and has nothing more then
