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
        end = len(self._ids)
        text = self._decode(self._start, end)
        if not text.endswith(REPLACEMENT):
            return self._give_out(end, text)
        if end - self._read < MAX_HELD_TOKENS:
            return ""
        border = self._last_border()
        return self._give_out(border, self._decode(self._start, border))

    def flush(self) -> str:
        """The text of held tokens at the end, without the character that is cut in its middle."""
        end = len(self._ids)
        if self._read == end:
            return ""
        text = self._give_out(end, self._decode(self._start, end))
        for _ in range(MAX_CUT_BYTES):
            text = text.removesuffix(REPLACEMENT)
        return text

    def _last_border(self) -> int:
        """Up to where held tokens are certain: those behind may begin a character."""
        end = len(self._ids)
        whole = self._decode(self._read, end)
        for held in range(MAX_CUT_BYTES, 0, -1):
            border = end - held
            if self._decode(self._read, border) + self._decode(border, end) == whole:
                return border
        return end

    def _give_out(self, end: int, text: str) -> str:
        """What `text`, that of the window up to `end`, adds to what was given out."""
        known = self._decode(self._start, self._read)
        # A run of bytes may be no text as a whole, though its beginning was.
        is_longer = text.startswith(known)
        text = text[len(known) :] if is_longer else self._decode(self._read, end)
        self._start, self._read = self._read, end
        if self._start > 64:  # the window is short; what lies before it is of no more use
            del self._ids[: self._start]
            self._read -= self._start
            self._start = 0
        return text

    def _decode(self, start: int, end: int) -> str:
        return self._vocabulary.decode(self._ids[start:end])
