"""Text grows without losing, doubling or splitting a character."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers

from tokenloom_engine.detokenizer import Detokenizer
from tokenloom_engine.vocabulary import Vocabulary

TEXTS = [
    "The quick brown fox, jumps over 13 lazy dogs.\n\n\tIndented  twice.",
    "你好，世界🙂👍🏽 क्षि naïve café",
    "日本語のテキストと العربية и кириллица",
    "def f(x):\n    return x ** 2  # comment\r\n",
]


@pytest.mark.parametrize("text", TEXTS)
def test_pieces_join_to_the_text(vocabulary: Vocabulary, tokenizer_file: str, text: str) -> None:
    ids = Tokenizer.from_file(str(tokenizer_file)).encode(text, add_special_tokens=False).ids
    detokenizer = Detokenizer(vocabulary, [])
    pieces = [detokenizer.push(id) for id in ids]
    assert "".join(pieces) + detokenizer.flush() == text
    assert all("\ufffd" not in piece for piece in pieces)


@pytest.mark.parametrize("text", TEXTS)
def test_every_cut_gives_the_text_so_far(
    vocabulary: Vocabulary, tokenizer_file: str, text: str
) -> None:
    ids = Tokenizer.from_file(str(tokenizer_file)).encode(text, add_special_tokens=False).ids
    for end in range(1, len(ids)):
        detokenizer = Detokenizer(vocabulary, [])
        joined = "".join(detokenizer.push(id) for id in ids[:end])
        assert text.startswith(joined)
        tail = detokenizer.flush()
        assert not tail, "what is held is the beginning of a character"


def test_special_tokens_keep_their_name_and_disturb_nothing(vocabulary: Vocabulary) -> None:
    detokenizer = Detokenizer(vocabulary, [1])
    assert detokenizer.push(2) == "<|im_end|>"
    hello = vocabulary._tokenizer.encode("Hello there", add_special_tokens=False).ids
    assert "".join(detokenizer.push(id) for id in hello) == "Hello there"


def test_bytes_that_are_no_character_do_not_hold_the_stream_for_ever(
    vocabulary: Vocabulary, tokenizer_file: str
) -> None:
    lone = Tokenizer.from_file(str(tokenizer_file)).token_to_id("ð")  # byte F0, spelt as BPE does
    assert lone is not None
    detokenizer = Detokenizer(vocabulary, [])
    pieces = [detokenizer.push(lone) for _ in range(20)]
    assert "".join(pieces[:10]), "it does not wait for the end"
    text = "".join(pieces) + detokenizer.flush()
    assert text == "\ufffd" * 17, "only the last three may be a character that was cut"


@pytest.mark.parametrize("number", range(1, 20))
def test_a_character_after_bytes_that_are_none(
    vocabulary: Vocabulary, tokenizer_file: str, number: int
) -> None:
    tokenizer = Tokenizer.from_file(str(tokenizer_file))
    lone = tokenizer.token_to_id("ð")  # byte F0, with which the emoji begins, too
    assert lone is not None
    emoji = tokenizer.encode("🙂 yes", add_special_tokens=False).ids
    detokenizer = Detokenizer(vocabulary, [])
    text = "".join(detokenizer.push(id) for id in [lone] * number + emoji) + detokenizer.flush()
    assert text == "\ufffd" * number + "🙂 yes"


def _byte_fallback() -> Vocabulary:
    """Llama 2's way to spell what it has no piece for: a token for each byte."""
    pieces = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a", "▁a"]
    vocabulary = {piece: id for id, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], byte_fallback=True))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(content=" ", left=1),
        ]
    )
    return Vocabulary(tokenizer, frozenset())


@pytest.mark.parametrize("text", ["🙂👍🏽", "a你好 a", "क्षि"])
def test_bytes_of_characters_are_cut_between_them(text: str) -> None:
    vocabulary = _byte_fallback()
    ids = [byte + 1 for byte in text.encode()]
    for end in range(len(ids) + 1):
        detokenizer = Detokenizer(vocabulary, [])
        joined = "".join(detokenizer.push(id) for id in ids[:end]) + detokenizer.flush()
        assert joined == text.encode()[:end].decode(errors="ignore")


def test_a_byte_that_is_no_character_harms_no_other() -> None:
    vocabulary = _byte_fallback()
    emoji, cut, word = "🙂".encode(), b"\xe4", 259
    detokenizer = Detokenizer(vocabulary, [])
    ids = [*(byte + 1 for byte in emoji + cut), word]
    assert "".join(detokenizer.push(id) for id in ids) + detokenizer.flush() == "🙂\ufffd a"


def test_sentencepiece_words_keep_their_spaces() -> None:
    words = {"<unk>": 0, "▁Here": 1, "▁is": 2, "▁the": 3, "▁plan": 4, "s": 5, "▁": 6}
    tokenizer = Tokenizer(models.BPE(vocab=words, merges=[], unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(content=" ", left=1)]
    )
    vocabulary = Vocabulary(tokenizer, frozenset())
    detokenizer = Detokenizer(vocabulary, [1])
    assert "".join(detokenizer.push(id) for id in [2, 3, 4, 5]) == " is the plans"
    assert "".join(Detokenizer(vocabulary, []).push(id) for id in [1]) == "Here"
