"""The bytes of tokens, joined, are the text's."""

from __future__ import annotations

from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers

from tokenloom_router.token_bytes import TokenBytes


@pytest.mark.parametrize(
    "text", ["Hello there", "你好🙂👍🏽 क्षि naïve\n\t\u00ad\u00a0", "  two  spaces"]
)
def test_byte_level(tokenizer_file: Path, text: str) -> None:
    tokenizer = Tokenizer.from_file(str(tokenizer_file))
    tokens = TokenBytes(tokenizer)
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    assert b"".join(tokens.of(id) for id in ids) == text.encode()
    assert tokens.of(2) == b"<|im_end|>"
    assert tokens.of(10**6) == b""


def test_byte_fallback() -> None:
    words = {"<unk>": 0, "▁Here": 1, "▁": 2, "<0xE4>": 3, "<0xBD>": 4, "<0xA0>": 5}
    tokenizer = Tokenizer(models.BPE(vocab=words, merges=[], unk_token="<unk>", byte_fallback=True))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback()])
    tokens = TokenBytes(tokenizer)
    assert b"".join(tokens.of(id) for id in (1, 2, 3, 4, 5)).decode() == " Here 你"
