"""The text of one choice as it grows: without special tokens, and without what ended it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from tokenloom_engine.messages import Finish, SequenceOutput, StoppingParams, Token


@dataclass(slots=True)
class Piece:
    """What a step adds to a choice."""

    text: str = ""
    tokens: list[Token] = field(default_factory=list)
    """Those whose text begins in it."""
    ids: list[int] = field(default_factory=list)
    """Of all tokens that the step brought, whatever becomes of their text."""
    finish: Finish | None = None


@dataclass(slots=True)
class _Held:
    """A token's text, or the rest of it, that may yet turn out to belong to a stop string."""

    raw: str
    """With the names of special tokens."""
    visible: bool
    token: Token | None
    """None if it was given out with the first part of its text."""


class ChoiceText:
    """Holds text back while it may be the beginning of a stop string; cuts off what ended it."""

    def __init__(
        self,
        stopping: StoppingParams,
        eos_token_ids: frozenset[int],
        *,
        keeps_stop: bool,
        skips_special_tokens: bool,
        is_mark: Callable[[str], bool] = lambda text: False,
    ) -> None:
        """`is_mark` tells the special tokens that are shown all the same."""
        self._stop = stopping.stop
        self._stop_token_ids = frozenset(stopping.stop_token_ids)
        self._end_token_ids = eos_token_ids | self._stop_token_ids
        self._keeps_stop = keeps_stop
        self.skips_special_tokens = skips_special_tokens
        self._is_mark = is_mark
        self._held: list[_Held] = []
        self.stop_reason: str | int | None = None
        """The stop string or token of the request that ended the text."""

    def push(self, output: SequenceOutput) -> Piece:
        """Take what a step brought; return what of the text is now certain."""
        finish = output.finish
        last = len(output.tokens) - 1
        for position, token in enumerate(output.tokens):
            is_end = finish is not None and position == last and self._is_end(token, finish)
            if is_end and token.id in self._stop_token_ids:
                self.stop_reason = token.id
            if is_end and not self._keeps_stop:
                continue
            is_skipped = token.special and self.skips_special_tokens
            visible = not is_skipped or self._is_mark(token.text)
            self._held.append(_Held(token.text, visible, token))
        piece = Piece(ids=[token.id for token in output.tokens], finish=finish)
        self._give_out(piece, self._num_certain(finish))
        if finish is not None:
            self._held.clear()
        return piece

    def _is_end(self, token: Token, finish: Finish) -> bool:
        return finish.reason == "eos_token" and token.id in self._end_token_ids

    def _num_certain(self, finish: Finish | None) -> int:
        """How many characters of what is held are part of the text."""
        raw = "".join(held.raw for held in self._held)
        if finish is not None and finish.reason == "stop_sequence":
            self.stop_reason = max((s for s in self._stop if raw.endswith(s)), key=len, default="")
            return len(raw) - (0 if self._keeps_stop else len(self.stop_reason))
        if finish is not None or self._keeps_stop:
            return len(raw)
        return len(raw) - max((_overlap(raw, stop) for stop in self._stop), default=0)

    def _give_out(self, piece: Piece, num_certain: int) -> None:
        """Move what is certain from what is held to the piece."""
        at_end = num_certain == sum(len(held.raw) for held in self._held)
        rest: list[_Held] = []
        start = 0
        for held in self._held:
            end = start + len(held.raw)
            taken = held.raw[: max(0, num_certain - start)]
            if start < num_certain or (at_end and not held.raw):
                piece.text += taken if held.visible else ""
                if held.token is not None:
                    piece.tokens.append(held.token)
                held = _Held(held.raw[len(taken) :], held.visible, None)
            if end > num_certain or held.token is not None:
                rest.append(held)
            start = end
        self._held = rest


def _overlap(text: str, stop: str) -> int:
    """The length of the longest end of `text` that `stop` begins with but does not end with."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
