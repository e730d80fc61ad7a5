"""The tokens of a vocabulary that are no text."""

from __future__ import annotations

import re
from collections.abc import Mapping


class SpecialTokens:
    """By name and id."""

    def __init__(self, ids: Mapping[str, int]) -> None:
        self._ids = ids
        longest_first = sorted(ids, key=len, reverse=True)
        self._name = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")

    def find(self, token: int | str) -> int | None:
        """The id of the special token that has this id or name, if there is one."""
        if isinstance(token, str):
            return self._ids.get(token)
        return token if token in self._ids.values() else None

    def split(self, text: str) -> list[str | int]:
        """The text's pieces: texts, none of them empty, and the ids of special tokens."""
        pieces: list[str | int] = []
        end = 0
        for name in self._name.finditer(text):
            pieces += [text[end : name.start()], self._ids[name[0]]]
            end = name.end()
        return [piece for piece in [*pieces, text[end:]] if piece != ""]
