"""The tokenizer as the front process needs it: text to token ids, from many threads at once."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import tokenizers

from tokenloom_router.chat_template import Piece
from tokenloom_router.token_bytes import TokenBytes

REPLACEMENT = "\ufffd"
"""What a decoder writes for bytes that are no character."""


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
        added = self._tokenizer.get_added_tokens_decoder()
        self._special = {id: token.content for id, token in added.items() if token.special}
        self._token_bytes = TokenBytes(self._tokenizer)

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

    def encode_pieces(self, pieces: Sequence[Piece]) -> list[int]:
        """Return the token ids of a text in parts, some of which are plain; add none."""
        ids: list[int] = []
        for text, is_plain in pieces:
            tokenizer = self._plain if is_plain else self._tokenizer
            (encoding,) = tokenizer.encode_batch_fast([text], add_special_tokens=False)
            ids += encoding.ids
        return ids

    def piece_spans(self, pieces: Sequence[Piece]) -> list[TokenSpan]:
        """Return the tokens of a text in parts, with their places in it."""
        spans: list[TokenSpan] = []
        start = 0
        for text, is_plain in pieces:
            tokenizer = self._plain if is_plain else self._tokenizer
            spans += _spans(tokenizer, text, start, add_special_tokens=False)
            start += len(text.encode())
        return spans

    @property
    def special_texts(self) -> Collection[str]:
        """The spellings of special tokens."""
        return self._special.values()

    def decode(self, ids: Sequence[int]) -> str:
        """The text of tokens, with the names of special ones."""
        return self._tokenizer.decode(list(ids), skip_special_tokens=False)

    def token_bytes(self, id: int) -> bytes:
        """A token's part of a text."""
        return self._token_bytes.of(id)

    def is_special(self, id: int) -> bool:
        """Whether a token is a mark, as BOS is, and not text."""
        return id in self._special

    @cached_property
    def _plain(self) -> tokenizers.Tokenizer:
        """One that takes what spells a special token for text."""
        tokenizer = tokenizers.Tokenizer.from_str(self.json)
        tokenizer.encode_special_tokens = True
        return tokenizer

    def text_behind(self, before: int, ids: Sequence[int]) -> str | None:
        """Return what `ids` add to a text whose last token is `before`.

        None if it begins or ends inside a character.
        """
        decode = self._tokenizer.decode
        return _added(decode([before]), decode([before, *ids]))

    def texts(self) -> list[str]:
        """Return the texts of the vocabulary's tokens, as they are inside a text.

        Without special tokens, and without those that begin or end inside a character.
        """
        before = self.encode("a", add_special_tokens=False)
        ids = [id for id in self._tokenizer.get_vocab().values() if not self.is_special(id)]
        known, *wholes = self._tokenizer.decode_batch([before, *([*before, id] for id in ids)])
        return [text for whole in wholes if (text := _added(known, whole))]

    def spans(self, text: str, *, add_special_tokens: bool = True) -> list[TokenSpan]:
        """Return the tokens of `text` with their places. Added special tokens cover nothing."""
        return _spans(self._tokenizer, text, 0, add_special_tokens=add_special_tokens)


def _spans(
    tokenizer: tokenizers.Tokenizer, text: str, first: int, *, add_special_tokens: bool
) -> list[TokenSpan]:
    """The tokens of a text that begins at byte `first`."""
    (encoding,) = tokenizer.encode_batch([text], add_special_tokens=add_special_tokens)
    # offsets count characters: bytes_before[i] is the number of bytes before character i
    bytes_before = list(accumulate((len(char.encode()) for char in text), initial=first))
    return [
        TokenSpan(id, text[start:stop], bytes_before[start], bytes_before[stop])
        for id, (start, stop) in zip(encoding.ids, encoding.offsets, strict=True)
    ]


def _added(known: str, whole: str) -> str | None:
    """What a text has grown by; None if it begins or ends inside a character."""
    text = whole[len(known) :]
    return None if REPLACEMENT in text or not whole.startswith(known) else text
