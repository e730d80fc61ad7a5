"""The vocabularies that xgrammar is given: tokens as the bytes that they are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models

from tokenloom_engine.constraints.backends import load_backend
from tokenloom_engine.constraints.base import Constraint, TokenizerFacts
from tokenloom_engine.constraints.config import ConstraintConfig
from tokenloom_engine.constraints.spec import ConstraintSpec


def test_bytes_for_what_is_no_token() -> None:
    """As SentencePiece has them: `▁` is a space, and other characters are spelled in bytes."""
    texts = ["<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a", "▁a"]
    ids = {text: id for id, text in enumerate(texts)}
    tokenizer = Tokenizer(models.BPE(ids, [("▁", "a")], byte_fallback=True))
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback()])
    tokenizer.add_special_tokens(["<s>", "</s>"])
    vocabulary = Vocabulary(tokenizer, size=320, eos=1)
    constraint = vocabulary.backend.create(ConstraintSpec("choice", '[" a", "é"]'))
    assert vocabulary.next(constraint) == {ids["▁"], ids["▁a"], ids["<0x20>"], ids["<0xC3>"]}
    assert constraint.accept_tokens([ids["<0xC3>"]])
    assert not constraint.is_accepting
    assert vocabulary.next(constraint) == {ids["<0xA9>"]}
    assert constraint.accept_tokens([ids["<0xA9>"]])
    assert constraint.is_terminated
    assert vocabulary.next(constraint) == {1}
    anything = vocabulary.backend.create(ConstraintSpec("text"))
    assert not vocabulary.next(anything) & {0, *range(len(texts), 320)}, "special, or padding"


def test_added_tokens_that_are_text(tokenizer_file: Path) -> None:
    tokenizer = Tokenizer.from_file(str(tokenizer_file))
    tokenizer.add_tokens([AddedToken("<think> é", special=False, normalized=False)])
    (added,) = tokenizer.encode("<think> é").ids
    vocabulary = Vocabulary(tokenizer, size=added + 7, eos=2)
    constraint = vocabulary.backend.create(ConstraintSpec("choice", '["<think> é!"]'))
    assert added in vocabulary.next(constraint)
    assert constraint.accept_tokens([added])
    assert vocabulary.next(constraint) == {tokenizer.token_to_id("!")}


class Vocabulary:
    """Asks for the next tokens over a vocabulary."""

    def __init__(self, tokenizer: Tokenizer, size: int, eos: int) -> None:
        facts = TokenizerFacts(
            json=tokenizer.to_str(), vocab_size=size, eos_token_ids=(eos,), num_threads=1
        )
        self._bitmask = np.zeros((1, -(-size // 32)), dtype=np.int32)
        self.backend = load_backend("xgrammar", facts, ConstraintConfig())

    def next(self, constraint: Constraint) -> set[int]:
        self.backend.fill_bitmasks([(constraint, 0)], self._bitmask)
        bits = np.unpackbits(self._bitmask.view(np.uint8), bitorder="little")
        return set(np.flatnonzero(bits).tolist())
