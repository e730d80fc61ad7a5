"""The tokenizer as the engine needs it: ids to text."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from tokenizers import Tokenizer


class Vocabulary:
    """Token ids, their texts, and which of them are special."""

    def __init__(self, tokenizer: Tokenizer, eos_token_ids: frozenset[int]) -> None:
        self._tokenizer = tokenizer
        self.eos_token_ids = eos_token_ids
        used = set(tokenizer.get_vocab(with_added_tokens=True).values())
        self.size = max(used) + 1
        """One past the largest id that has a text. Logits may be wider: padding."""
        self.holes = tuple(id for id in range(self.size) if id not in used)
        """Ids below `size` that are no token's."""
        added = tokenizer.get_added_tokens_decoder()
        self._special = {id: token.content for id, token in added.items() if token.special}
        self.text = lru_cache(maxsize=65536)(self._text)

    @classmethod
    def from_file(cls, tokenizer_file: str | Path, eos_token_ids: frozenset[int]) -> Vocabulary:
        """Read a tokenizer.json."""
        return cls(Tokenizer.from_file(str(tokenizer_file)), eos_token_ids)

    def is_special(self, id: int) -> bool:
        """Whether the token is a mark (as BOS and EOS are) and not text."""
        return id in self._special or id in self.eos_token_ids

    def special_text(self, id: int) -> str:
        """A special token's own spelling."""
        text = self._special.get(id)
        return text if text is not None else self.decode([id])

    def decode(self, ids: list[int]) -> str:
        """The text of text tokens; U+FFFD stands for bytes that are no character."""
        text: str = self._tokenizer.decode(ids, skip_special_tokens=False)
        return text

    def _text(self, id: int) -> str:
        return self.special_text(id) if self.is_special(id) else self.decode([id])
