"""The tokenizer as the front process needs it: text to token ids, from many threads at once."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

import tokenizers


@dataclass(frozen=True, slots=True)
class TokenSpan:
    """One token of a text, and the bytes of the text's UTF-8 form that it covers."""

    id: int
    text: str
    start: int
    stop: int


class Tokenizer:
    """Never changes what it wraps, so threads may share it.

    The tokenizers library alone is enough: transformers would bring torch into the front process.
    """

    def __init__(self, file: str) -> None:
        """Read a `tokenizer.json`. Raise Exception, as the library does, if it cannot be read."""
        self._tokenizer = tokenizers.Tokenizer.from_file(file)
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()

    @property
    def json(self) -> str:
        """The text of its `tokenizer.json`."""
        return self._tokenizer.to_str()

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Return the token ids of `text`."""
        # The batch call releases the GIL; without offsets it is twice as fast.
        (encoding,) = self._tokenizer.encode_batch_fast(
            [text], add_special_tokens=add_special_tokens
        )
        return encoding.ids

    def spans(self, text: str, *, add_special_tokens: bool = True) -> list[TokenSpan]:
        """Return the tokens of `text` with their places. Added special tokens cover nothing."""
        (encoding,) = self._tokenizer.encode_batch([text], add_special_tokens=add_special_tokens)
        # offsets count characters: bytes_before[i] is the number of bytes before character i
        bytes_before = list(accumulate((len(char.encode()) for char in text), initial=0))
        return [
            TokenSpan(id, text[start:stop], bytes_before[start], bytes_before[stop])
            for id, (start, stop) in zip(encoding.ids, encoding.offsets, strict=True)
        ]
