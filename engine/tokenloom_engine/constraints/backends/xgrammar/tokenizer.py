"""A tokenizer as xgrammar and its constraints need it."""

from __future__ import annotations

import json
from typing import Any

from tokenizers import Encoding, Tokenizer
from tokenizers.pre_tokenizers import ByteLevel
from xgrammar import TokenizerInfo, VocabType

from tokenloom_engine.constraints.backends.xgrammar.special_tokens import special_token_ids
from tokenloom_engine.constraints.base import TokenizerFacts

APOSTROPHES = "'\u2019"


class XgrammarTokenizer:
    """The vocabulary, in which no special token is text, and the way to make tokens of text."""

    def __init__(self, facts: TokenizerFacts) -> None:
        self._tokenizer = Tokenizer.from_str(facts.json)
        added = self._tokenizer.get_added_tokens_decoder()
        vocab_type = _vocab_type(json.loads(facts.json), self._tokenizer)
        no_text = {*special_token_ids(facts.json).values(), *facts.eos_token_ids}
        vocabulary = [""] * facts.vocab_size
        for token, id in self._tokenizer.get_vocab(with_added_tokens=True).items():
            if id < facts.vocab_size and id not in no_text:
                vocabulary[id] = _encoded(token, vocab_type) if id in added else token
        self.info = TokenizerInfo(
            vocabulary,
            vocab_type,
            vocab_size=facts.vocab_size,
            stop_token_ids=list(facts.eos_token_ids),
        )
        self._texts = self.info.decoded_vocab
        self.eos_token_ids = facts.eos_token_ids

    def tokens_of(self, text: str, *, is_last: bool) -> list[int]:
        """The text's tokens, without those at its end that could be others in a longer text.

        Nothing if they are not certain. `is_last`: there is no longer text.
        """
        encoding = self._tokenizer.encode(text, add_special_tokens=False)
        ids = encoding.ids if is_last else encoding.ids[: _num_settled(encoding, text)]
        texts = [self._texts[id] for id in ids if id < len(self._texts)]
        if len(texts) < len(ids) or not all(texts):
            return []
        spelled, wanted = b"".join(texts), text.encode()
        return ids if spelled == wanted or (not is_last and wanted.startswith(spelled)) else []


def _vocab_type(tokenizer: dict[str, Any], loaded: Tokenizer) -> VocabType:
    parts = json.dumps([tokenizer.get("pre_tokenizer"), tokenizer.get("decoder")])
    if '"ByteLevel"' in parts:
        return VocabType.BYTE_LEVEL
    is_bytes_too = loaded.token_to_id("<0x00>") is not None
    return VocabType.BYTE_FALLBACK if is_bytes_too else VocabType.RAW


def _encoded(added: str, vocab_type: VocabType) -> str:
    """An added token as the vocabulary's other tokens are written."""
    if vocab_type is not VocabType.BYTE_LEVEL:
        return added
    pieces = ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(added)
    return "".join(piece for piece, _ in pieces)


def _num_settled(encoding: Encoding, text: str) -> int:
    """How many tokens stay what they are whatever the text goes on with.

    A tokenizer splits a text into words first. A word of letters ends where something else begins:
    no later text can join the two. (An apostrophe and letters may join, as may white space.)
    """
    words = encoding.word_ids
    for index in range(len(words) - 1, 0, -1):
        if words[index] == words[index - 1]:
            continue
        end = encoding.offsets[index - 1][1]
        before, after = text[end - 1 : end], text[end : end + 1]
        if before.isalpha() and after and not after.isalpha() and after not in APOSTROPHES:
            return index
    return 0
