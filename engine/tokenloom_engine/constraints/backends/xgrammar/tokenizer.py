"""A tokenizer's vocabulary as xgrammar needs it."""

from __future__ import annotations

import json
from typing import Any

from tokenizers import Tokenizer
from tokenizers.pre_tokenizers import ByteLevel
from xgrammar import TokenizerInfo, VocabType

from tokenloom_engine.constraints.base import TokenizerFacts


class XgrammarTokenizer:
    """The vocabulary, in which special tokens have no text."""

    def __init__(self, facts: TokenizerFacts) -> None:
        tokenizer = Tokenizer.from_str(facts.json)
        added = tokenizer.get_added_tokens_decoder()
        vocab_type = _vocab_type(json.loads(facts.json), tokenizer)
        special = {id for id, token in added.items() if token.special}
        no_text = special.union(facts.eos_token_ids)
        vocabulary = [""] * facts.vocab_size
        for token, id in tokenizer.get_vocab(with_added_tokens=True).items():
            if id < facts.vocab_size and id not in no_text:
                vocabulary[id] = _encoded(token, vocab_type) if id in added else token
        self.info = TokenizerInfo(
            vocabulary,
            vocab_type,
            vocab_size=facts.vocab_size,
            stop_token_ids=list(facts.eos_token_ids),
        )
        self.eos_token_ids = facts.eos_token_ids


def _vocab_type(tokenizer: dict[str, Any], loaded: Tokenizer) -> VocabType:
    parts = json.dumps([tokenizer.get("pre_tokenizer"), tokenizer.get("decoder")])
    if '"ByteLevel"' in parts:
        return VocabType.BYTE_LEVEL
    has_bytes = loaded.token_to_id("<0x00>") is not None
    return VocabType.BYTE_FALLBACK if has_bytes else VocabType.RAW


def _encoded(added: str, vocab_type: VocabType) -> str:
    """Encode an added token as the vocabulary's other tokens are encoded."""
    if vocab_type is not VocabType.BYTE_LEVEL:
        return added
    pieces = ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(added)
    return "".join(piece for piece, _ in pieces)
