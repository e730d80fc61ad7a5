"""Characters arrive whole, whatever the tokens are that spell them."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest
from tokenizers import Tokenizer, decoders, normalizers, processors, trainers
from tokenizers.models import BPE
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from tests.integration.random_model import save_random_model
from tests.integration.serving import Json, Server, client, events, generate, serve, token_ids

CHARACTERS = [
    *'azAZ09 .,"\\/{}[]()*+?|^$#~-_\n\t\r',
    *"äßéñçøłőž",
    *"你好世界漢字日本語한국어ひらがな",
    *"العربية",
    *"עברית",
    *("क्षि", "ก็", "த்தி", "е̄", "ä̈́", "ﬁ", "\u200f", "\u202e", "\u200b", "\ufeff"),
    *("🙂", "👍🏽", "👨‍👩‍👧‍👦", "🏳️‍🌈", "🇳🇴", "1️⃣", "❤️", "🧑🏿‍🚀", "𝔘", "𐍈", "\U0010ffff", "\u0080"),
]
PLAN = "Here is the plan for us"


def random_text(seed: int) -> str:
    rng = random.Random(seed)
    return "".join(rng.choice(CHARACTERS) for _ in range(rng.randint(1, 16)))


def only(text: str) -> Json:
    """A grammar that leaves nothing but this text."""
    return {"type": "regex", "value": re.escape(text)}


@pytest.fixture(scope="module")
def byte_level(model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A tiny random Llama with the bundled model's tokenizer, whose letters are bytes."""
    folder = tmp_path_factory.mktemp("byte_level")
    tokenizer = AutoTokenizer.from_pretrained(model_path)
    save_random_model(folder, tokenizer)
    with serve(folder / "log", "--model-id", str(folder), "--dtype", "float32") as server:
        yield server


@pytest.fixture(scope="module")
def sentencepiece(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A tiny random Llama, whose tokenizer is of Llama 2's kind: pieces with ▁, and bytes."""
    folder = tmp_path_factory.mktemp("sentencepiece")
    tokenizer = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=_sentencepiece_tokenizer(),
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
    )
    save_random_model(folder, tokenizer)
    with serve(
        *(folder / "log", "--model-id", str(folder), "--dtype", "float32"), PREFIX_CACHING="0"
    ) as server:
        yield server


@pytest.mark.anyio
async def test_200_random_texts_arrive_byte_for_byte(byte_level: Server) -> None:
    texts = [random_text(seed) for seed in range(200)]
    limiter = anyio.CapacityLimiter(24)
    async with client(byte_level) as http:

        async def say(number: int, text: str) -> None:
            given: Json = {"grammar": only(text), "forced_tokens": number % 8 > 0}
            async with limiter:
                whole = await generate(http, "Say: ", **given)
                streamed = [event async for event in events(http, "Say: ", **given)]
            pieces = [event["token"]["text"] for event in streamed if not _is_special(event)]
            assert "".join(pieces).encode() == text.encode()
            assert not any("\ufffd" in piece for piece in pieces)
            assert streamed[-1]["generated_text"] == whole["generated_text"] == text

        async with anyio.create_task_group() as tasks:
            for number, text in enumerate(texts):
                tasks.start_soon(say, number, text)


@pytest.mark.anyio
async def test_bytes_that_make_no_character_are_valid_json_all_the_same(
    byte_level: Server, tokenizer_file: Path
) -> None:
    ids = Tokenizer.from_file(str(tokenizer_file)).get_vocab()
    alphabet = [ids[character] for character in _byte_level_alphabet() if character in ids]
    given: Json = {"logit_bias": {str(id): 20 for id in alphabet}, "temperature": 1.9}
    async with client(byte_level) as http:
        for seed in range(6):
            whole = await generate(http, "Say: ", max_new_tokens=40, seed=seed, **given)
            joined = "".join(t["text"] for t in whole["details"]["tokens"] if not t["special"])
            assert joined == whole["generated_text"]
            assert "\ufffd" in joined


@pytest.mark.anyio
@pytest.mark.parametrize("text", [PLAN, f" {PLAN}", "  two  spaces ", "你好🙂👍🏽 क्षि plan"])
@pytest.mark.parametrize("forced_tokens", [True, False])
async def test_sentencepiece_keeps_spaces_and_characters(
    sentencepiece: Server, text: str, *, forced_tokens: bool
) -> None:
    given: Json = {"grammar": only(text), "forced_tokens": forced_tokens}
    async with client(sentencepiece) as http:
        whole = await generate(http, "the plan is", return_full_text=True, **given)
        streamed = [event async for event in events(http, "the plan is", **given)]
        assert whole["generated_text"] == f"the plan is{text}"
        assert _joined(streamed) == streamed[-1]["generated_text"] == text
        for most in range(1, len(streamed)):
            cut = [event async for event in events(http, "a", max_new_tokens=most, **given)]
            assert _joined(cut) == cut[-1]["generated_text"]
            assert text.startswith(_joined(cut))


@pytest.mark.anyio
async def test_sentencepiece_text_at_random_is_the_same_in_both_modes(
    sentencepiece: Server,
) -> None:
    async with client(sentencepiece) as http:
        for seed in range(8):
            given: Json = {"seed": seed, "temperature": 1.0, "max_new_tokens": 60}
            whole = await generate(http, "is the", **given)
            streamed = [event async for event in events(http, "is the", **given)]
            assert [event["token"]["id"] for event in streamed] == token_ids(whole)
            assert _joined(streamed) == streamed[-1]["generated_text"] == whole["generated_text"]


@pytest.mark.anyio
async def test_a_prompt_has_one_token_that_begins_it(sentencepiece: Server) -> None:
    async with client(sentencepiece) as http:
        given: Json = {"max_new_tokens": 1, "decoder_input_details": True}
        prefill = (await generate(http, "the plan", **given))["details"]["prefill"]
        assert [token["text"] for token in prefill].count("<s>") == 1
        assert (prefill[0]["text"], prefill[0]["logprob"]) == ("<s>", None)
        response = await http.post("/tokenize", json={"inputs": "the plan"})
        assert [token["id"] for token in response.json()] == [token["id"] for token in prefill]


@pytest.mark.anyio
async def test_prefix_caching_of_0_is_heeded(sentencepiece: Server) -> None:
    async with client(sentencepiece) as http:
        cold, again = [await generate(http, "the plan " * 20, max_new_tokens=4) for _ in range(2)]
    assert token_ids(again) == token_ids(cold)
    assert sentencepiece.metric("tgi_prefix_cache_hit_tokens") == 0


def _sentencepiece_tokenizer() -> Tokenizer:
    normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    learned = Tokenizer(BPE())
    learned.normalizer = normalizer
    sentences = [PLAN, "the plan is here for us", "two spaces are here"] * 10
    learned.train_from_iterator(sentences, trainers.BpeTrainer(vocab_size=80, show_progress=False))
    pieces = [piece for piece, _ in sorted(learned.get_vocab().items(), key=lambda item: item[1])]
    names = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces]
    vocabulary = {name: id for id, name in enumerate(names)}
    tokenizer = Tokenizer(
        BPE(
            vocab=vocabulary,
            merges=_merges(pieces, vocabulary),
            unk_token="<unk>",
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    tokenizer.normalizer = normalizer
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(content=" ", left=1),
        ]
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)]
    )
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    return tokenizer


def _merges(pieces: list[str], vocabulary: dict[str, int]) -> list[tuple[str, str]]:
    """One way to put each piece together from two others."""
    return [
        next(
            (piece[:cut], piece[cut:])
            for cut in range(1, len(piece))
            if piece[:cut] in vocabulary and piece[cut:] in vocabulary
        )
        for piece in pieces
        if len(piece) > 1
    ]


def _byte_level_alphabet() -> list[str]:
    """How byte-level vocabularies spell the bytes from 0x80 on."""
    return [
        *(chr(0x122 + byte) for byte in range(0x21)),
        *(chr(byte) for byte in range(0xA1, 0x100)),
    ]


def _is_special(event: Json) -> bool:
    special: bool = event["token"]["special"]
    return special


def _joined(streamed: list[Json]) -> str:
    return "".join(event["token"]["text"] for event in streamed if not _is_special(event))
