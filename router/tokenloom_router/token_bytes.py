"""The bytes of single tokens, of which a character may need several."""

from __future__ import annotations

import json
import re

import tokenizers

_BYTE_PIECE = re.compile("<0x([0-9A-Fa-f]{2})>")


class TokenBytes:
    """Knows how a tokenizer's vocabulary spells bytes. Safe in any thread."""

    def __init__(self, tokenizer: tokenizers.Tokenizer) -> None:
        self._tokenizer = tokenizer
        added = tokenizer.get_added_tokens_decoder()
        self._added = {id: token.content.encode() for id, token in added.items()}
        decoder = json.loads(tokenizer.to_str())["decoder"]
        self._bytes = _byte_alphabet() if "ByteLevel" in _types(decoder) else None

    def of(self, id: int) -> bytes:
        """A token's part of the text; nothing for an id that has no token."""
        if id in self._added:
            return self._added[id]
        piece = self._tokenizer.id_to_token(id)
        if piece is None:
            return b""
        if self._bytes is not None:
            return b"".join(self._bytes.get(char) or char.encode() for char in piece)
        if match := _BYTE_PIECE.fullmatch(piece):
            return bytes.fromhex(match[1])
        return piece.replace("▁", " ").encode()


def _types(decoder: dict[str, object] | None) -> list[object]:
    """The kinds of a decoder and of those that it is made of."""
    if decoder is None:
        return []
    parts = decoder.get("decoders")
    inner = [t for part in parts for t in _types(part)] if isinstance(parts, list) else []
    return [decoder.get("type"), *inner]


def _byte_alphabet() -> dict[str, bytes]:
    """Byte-level vocabularies spell printable bytes in Latin-1, the others from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): bytes([byte]) for byte in printable}
    return alphabet | {chr(256 + i): bytes([byte]) for i, byte in enumerate(others)}
