"""Stop strings, found wherever they end."""

from __future__ import annotations

from collections.abc import Iterator

from tokenloom_engine.messages import StopScope
from tokenloom_engine.stop_scope import StopScopeReader

EVERYWHERE = StopScope()


class StopStrings:
    """Watches a growing text for the first stop string to appear in it."""

    def __init__(self, stop: tuple[str, ...], scope: StopScope = EVERYWHERE) -> None:
        self._stop = tuple(s for s in stop if s)
        self._reach = max((len(s) for s in self._stop), default=1) - 1
        self._tail = ""
        """The end of the text so far, as much of it as a stop string can begin in."""
        self._scope = StopScopeReader(scope) if scope != EVERYWHERE else None
        self._silent: list[bool] = []
        """Of each character of the tail: whether what ends with it does not count."""

    def cut(self, text: str, *, may_stop: bool = True) -> int | None:
        """Add a piece; returns how many of its characters stay if a stop string ends in it.

        Where it may not stop, what ends in the piece is passed over for good.
        """
        if not self._stop or not text:
            return None
        window = self._tail + text
        silent = self._silent + (self._scope.push(text) if self._scope else [False] * len(text))
        ends = [end for s in self._stop for end in _ends(window, s) if not silent[end - 1]]
        new = [end for end in ends if end > len(self._tail)]
        if new and may_stop:
            return min(new) - len(self._tail)
        self._tail = window[-self._reach :] if self._reach else ""
        self._silent = silent[-self._reach :] if self._reach else []
        return None


def _ends(text: str, part: str) -> Iterator[int]:
    """Where each occurrence of `part` ends."""
    start = text.find(part)
    while start >= 0:
        yield start + len(part)
        start = text.find(part, start + 1)
