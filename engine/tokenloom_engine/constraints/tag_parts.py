"""What structural tags are written with: texts, with special tokens as tokens, and refusals."""

from __future__ import annotations

from collections.abc import Sequence as Seq

from tokenloom_engine.constraints.base import InvalidConstraintError
from tokenloom_engine.constraints.lark_parts import ANY, LarkWriter, Part, Special, Text
from tokenloom_engine.constraints.special_tokens import SpecialTokens


class TagTexts:
    """The texts of one tag's grammar."""

    def __init__(self, special_tokens: SpecialTokens, lark: LarkWriter) -> None:
        self._special_tokens = special_tokens
        self._lark = lark

    def fixed(self, text: str, *, closes: bool = False) -> list[Part]:
        """A given text, in pieces. `closes`: it ends a tag."""
        return [
            Text.fixed(piece, closes=closes) if isinstance(piece, str) else Special(piece)
            for piece in self._special_tokens.split(text)
        ]

    def free(self, path: str, excludes: Seq[str]) -> Text:
        """Text of any length, in which the excluded texts do not occur."""
        if not excludes:
            return Text(ANY, open_at=path)
        has_one = self._lark.terminal(f"{ANY} {Text.fixed(*excludes).term} {ANY}")
        return Text(self._lark.terminal(f"{ANY} & ~{has_one}"), open_at=path)


def is_text(parts: Seq[Part]) -> bool:
    """Whether these are one text, without a special token."""
    return len(parts) == 1 and isinstance(parts[0], Text)


def refusal(path: str, reason: str) -> InvalidConstraintError:
    """That what stands at a path of the tag cannot be written."""
    return InvalidConstraintError(f"{path}: {reason}")
