"""Stop strings, found wherever they end."""

from __future__ import annotations

from collections.abc import Iterator


class StopStrings:
    """Watches a growing text for the first stop string to appear in it."""

    def __init__(self, stop: tuple[str, ...], *, in_json: bool = False) -> None:
        """`in_json`: the text is JSON, and what ends inside one of its strings does not count."""
        self._stop = tuple(s for s in stop if s)
        self._reach = max((len(s) for s in self._stop), default=1) - 1
        self._tail = ""
        """The end of the text so far, as much of it as a stop string can begin in."""
        self._json = JsonStrings() if in_json else None
        self._inside: list[bool] = []
        """Of each character of the tail: whether it lies in a JSON string."""

    def cut(self, text: str, *, may_stop: bool = True) -> int | None:
        """Add a piece; returns how many of its characters stay if a stop string ends in it.

        Where it may not stop, what ends in the piece is passed over for good.
        """
        if not self._stop or not text:
            return None
        window = self._tail + text
        inside = self._inside + (self._json.push(text) if self._json else [False] * len(text))
        ends = [end for s in self._stop for end in _ends(window, s) if not inside[end - 1]]
        new = [end for end in ends if end > len(self._tail)]
        if new and may_stop:
            return min(new) - len(self._tail)
        self._tail = window[-self._reach :] if self._reach else ""
        self._inside = inside[-self._reach :] if self._reach else []
        return None


class JsonStrings:
    """Tells which characters of a growing JSON text lie in its strings, the opening quote too."""

    def __init__(self) -> None:
        self._is_inside = False
        self._is_escaped = False

    def push(self, text: str) -> list[bool]:
        """Add a piece; returns whether a string is open after each of its characters."""
        return [self._step(character) for character in text]

    def _step(self, character: str) -> bool:
        if self._is_escaped:
            self._is_escaped = False
        elif character == '"':
            self._is_inside = not self._is_inside
        else:
            self._is_escaped = self._is_inside and character == "\\"
        return self._is_inside


def _ends(text: str, part: str) -> Iterator[int]:
    """Where each occurrence of `part` ends."""
    start = text.find(part)
    while start >= 0:
        yield start + len(part)
        start = text.find(part, start + 1)
