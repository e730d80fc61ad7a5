"""Where in a JSON Schema the reason lies for which a library refuses it whole."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

from tokenloom_engine.constraints.subschema import (
    Path,
    children,
    definitions,
    part,
    pointer,
    replaced,
    without,
)

MAX_VALIDATIONS = 300
MAX_SECONDS = 0.25


def find_fault(schema: str, reason: str, reason_of: Callable[[str], str | None]) -> str | None:
    """The JSON pointer of the keyword, or failing that of the schema, that is at fault.

    `reason_of` returns why a changed schema is refused, or None if it is not. It is called
    `MAX_VALIDATIONS` times at most, and not any more after `MAX_SECONDS` of this thread's time;
    what was found by then is returned. None if nothing was: the schema is not even JSON.
    """
    try:
        search = _Search(json.loads(schema), reason, reason_of)
    except (ValueError, RecursionError):
        return None
    try:
        return search.run()
    except (_SpentError, RecursionError):
        return pointer(search.path) if search.path else None


class _SpentError(Exception):
    """The search took as long as it may."""


class _Search:
    """Takes parts of the schema away and looks if the reason stays."""

    def __init__(self, schema: object, reason: str, reason_of: Callable[[str], str | None]) -> None:
        self._schema = schema
        """Still refused for the same reason, but with fewer and fewer parts."""
        self._reason = _first_line(reason)
        self._reason_of = reason_of
        self._deadline = time.thread_time() + MAX_SECONDS
        self._validations = 0
        self.path: Path = ()
        """The innermost schema known to be at fault."""

    def run(self) -> str | None:
        if not (isinstance(self._schema, dict) and self._is_refused(self._schema)):
            return None  # no object, or writing it anew changes it
        while self._descend():
            pass
        keyword = self._keyword()
        return pointer(self.path if keyword is None else (*self.path, keyword))

    def _descend(self) -> bool:
        """Go to the child that is at fault by itself. False if there is none."""
        schema = part(self._schema, self.path)
        # A definition is at fault only through what refers to it, which must stay as it is.
        return self._enter_one(definitions(schema)) or self._enter_one(children(schema))

    def _enter_one(self, group: list[Path]) -> bool:
        if not group or self._take_away(group):
            return False
        while len(group) > 1:
            first, second = group[: len(group) // 2], group[len(group) // 2 :]
            if self._take_away(second):
                group = first
            elif self._take_away(first):
                group = second
            else:
                return False  # it takes several together
        self.path += group[0]
        return True

    def _take_away(self, places: list[Path]) -> bool:
        """Do it if the reason stays; returns whether it does."""
        inner = without(part(self._schema, self.path), places)
        changed = replaced(self._schema, self.path, inner)
        if not self._is_refused(changed):
            return False
        self._schema = changed
        return True

    def _keyword(self) -> str | None:
        schema: dict[str, Any] = part(self._schema, self.path)
        for keyword in sorted(schema, key=lambda keyword: keyword not in self._reason):
            others = {key: value for key, value in schema.items() if key != keyword}
            if not self._is_refused(replaced(self._schema, self.path, others)):
                return keyword
        return None

    def _is_refused(self, schema: object) -> bool:
        """Whether it is, for the same reason."""
        if self._validations == MAX_VALIDATIONS or time.thread_time() > self._deadline:
            raise _SpentError
        self._validations += 1
        reason = self._reason_of(json.dumps(schema))
        return reason is not None and _first_line(reason) == self._reason


def _first_line(reason: str) -> str:
    return reason.partition("\n")[0]
