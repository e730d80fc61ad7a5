"""The special tokens of a tokenizer."""

from __future__ import annotations

import msgspec


class _AddedToken(msgspec.Struct):
    id: int
    content: str
    special: bool = False


class _AddedTokens(msgspec.Struct):
    added_tokens: list[_AddedToken] = []


def special_token_ids(tokenizer_json: str) -> dict[str, int]:
    """The ids, by their names, of what a tokenizer.json's text says to be no text."""
    tokens = msgspec.json.decode(tokenizer_json, type=_AddedTokens).added_tokens
    return {token.content: token.id for token in tokens if token.special}
