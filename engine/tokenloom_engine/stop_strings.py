"""Stop strings, found wherever they end."""

from __future__ import annotations


class StopStrings:
    """Watches a growing text for the first stop string to appear in it."""

    def __init__(self, stop: tuple[str, ...]) -> None:
        self._stop = tuple(s for s in stop if s)
        self._reach = max((len(s) for s in self._stop), default=1) - 1
        self._tail = ""
        """The end of the text so far, as much of it as a stop string can begin in."""

    def cut(self, text: str) -> int | None:
        """Add a piece; returns how many of its characters stay if a stop string ends in it."""
        if not self._stop or not text:
            return None
        window = self._tail + text
        found = ((window.find(s), len(s)) for s in self._stop)
        ends = [start + length for start, length in found if start >= 0]
        if ends:
            return min(ends) - len(self._tail)
        self._tail = window[-self._reach :] if self._reach else ""
        return None
