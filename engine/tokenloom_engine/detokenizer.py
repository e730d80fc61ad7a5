"""Token ids to text, one token at a time, never splitting a character."""

from __future__ import annotations

from collections.abc import Sequence as Seq

from tokenloom_engine.vocabulary import Vocabulary

REPLACEMENT = "\ufffd"
CONTEXT_TOKENS = 6
"""Prompt tokens that are decoded along, so that the first word knows whether a space leads it."""
MAX_HELD_TOKENS = 8
"""No character has more bytes than four, one token each; what stays undecodable is let go."""
MAX_CUT_BYTES = 3
"""Of a character that is cut; some decoders write a replacement for each."""


class Detokenizer:
    """The text of one sequence as it grows.

    A decoder may spell a token differently at the start of a text, so each token is decoded
    together with those before it, and the text that it adds is the difference. Tokens whose
    bytes do not end a character are held back until one does.
    """

    def __init__(self, vocabulary: Vocabulary, prompt_ids: Seq[int]) -> None:
        self._vocabulary = vocabulary
        self._ids = [id for id in prompt_ids[-CONTEXT_TOKENS:] if not vocabulary.is_special(id)]
        self._start = 0
        """Where the decoded window starts."""
        self._read = len(self._ids)
        """Up to here the text has been given out."""

    def push(self, id: int) -> str:
        """Add a token; returns the text that is now certain (a special token's is its name)."""
        if self._vocabulary.is_special(id):
            return self._vocabulary.special_text(id)
        self._ids.append(id)
        decode = self._vocabulary.decode
        known = decode(self._ids[self._start : self._read])
        text = decode(self._ids[self._start :])
        held = len(self._ids) - self._read
        if text.endswith(REPLACEMENT) and held < MAX_HELD_TOKENS:
            return ""
        return self._give_out(known, text)

    def flush(self) -> str:
        """The text of held tokens at the end, without the character that is cut in its middle."""
        if self._read == len(self._ids):
            return ""
        decode = self._vocabulary.decode
        text = self._give_out(
            decode(self._ids[self._start : self._read]), decode(self._ids[self._start :])
        )
        for _ in range(MAX_CUT_BYTES):
            text = text.removesuffix(REPLACEMENT)
        return text

    def _give_out(self, known: str, text: str) -> str:
        self._start, self._read = self._read, len(self._ids)
        if self._start > 64:  # the window is short; what lies before it is of no more use
            del self._ids[: self._start]
            self._read -= self._start
            self._start = 0
        return text[len(known) :]
