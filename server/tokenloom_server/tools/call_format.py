"""How a family of models writes calls of tools: fixed texts around names and JSON arguments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class CallFormat:
    """The texts of a format. A group of calls ends the answer, and is

    `opener` CALL (`separator` CALL)* `closer`, where CALL is
    `before_name` NAME `after_name` ARGUMENTS `end`.
    """

    opener: str = ""
    """What tells that calls follow. Empty: only a whole beginning, up to `after_name`, tells."""
    before_name: str = ""
    after_name: str
    end: str = ""
    separator: str | None = None
    """None: an answer has one call at most."""
    closer: str = ""
    needs_prompt: bool = False
    """Whether the model does not know the format unless it is told."""
    id_length: int | None = None
    """Of a call's id, where the model's chat template insists on one."""

    def begin(self, name: str) -> str:
        """A call up to its arguments."""
        return f"{self.before_name}{name}{self.after_name}"

    def call(self, name: str, arguments: str) -> str:
        """A whole call."""
        return f"{self.begin(name)}{arguments}{self.end}"

    def group(self, calls: Sequence[tuple[str, str]]) -> str:
        """Several calls, by name and arguments, as an answer has them."""
        separator = "\n" if self.separator is None else self.separator
        texts = separator.join(self.call(name, arguments) for name, arguments in calls)
        return f"{self.opener}{texts}{self.closer}"
