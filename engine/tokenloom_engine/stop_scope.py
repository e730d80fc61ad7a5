"""Follows a growing text, and tells where in it stop strings count."""

from __future__ import annotations

from typing import Literal

from tokenloom_engine.messages import StopScope


class StopScopeReader:
    """Reads one text, piece by piece, against a scope."""

    def __init__(self, scope: StopScope) -> None:
        self._scope = scope
        self._state: Literal["start", "aside", "gap", "text", "silence"] = "text"
        if scope.aside is not None:
            self._state = "aside" if scope.is_aside_open else "start"
        self._seen = ""
        """What may be the beginning of a tag, or of one of `until`."""
        self._reach = max((len(text) for text in (*scope.until, *(scope.aside or ()))), default=0)
        self._json = JsonStrings() if scope.in_json else None

    def push(self, text: str) -> list[bool]:
        """Add a piece; returns for each of its characters whether no stop string ends with it."""
        return [self._step(character) for character in text]

    def _step(self, character: str) -> bool:
        self._seen = (self._seen + character)[-self._reach :] if self._reach else ""
        if self._state == "start":
            self._read_start()
        elif self._state == "aside":
            return self._step_aside()
        if self._state == "gap" and not character.isspace():
            self._state = "text"
        return self._step_text(character) if self._state == "text" else True

    def _read_start(self) -> None:
        """White space, and as much of the first tag as there is, may yet lead to an aside."""
        assert self._scope.aside is not None
        start, _ = self._scope.aside
        self._seen = self._seen.lstrip()
        if self._seen == start:
            self._state, self._seen = "aside", ""
        elif not start.startswith(self._seen):
            self._state = "text"

    def _step_aside(self) -> bool:
        assert self._scope.aside is not None
        if self._seen.endswith(self._scope.aside[1]):
            self._state, self._seen = "gap", ""
        return True

    def _step_text(self, character: str) -> bool:
        if any(self._seen.endswith(text) for text in self._scope.until):
            self._state = "silence"
            return True
        return self._json is not None and self._json.step(character)


class JsonStrings:
    """Tells which characters of a growing JSON text lie in its strings, the opening quote too."""

    def __init__(self) -> None:
        self._is_inside = False
        self._is_escaped = False

    def step(self, character: str) -> bool:
        """Add a character; returns whether a string is open behind it."""
        if self._is_escaped:
            self._is_escaped = False
        elif character == '"':
            self._is_inside = not self._is_inside
        else:
            self._is_escaped = self._is_inside and character == "\\"
        return self._is_inside
