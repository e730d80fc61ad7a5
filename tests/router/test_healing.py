"""Token healing: which tokens are taken off a prompt's end, and with what they come again."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import tokenizers
from tokenizers import decoders, models, normalizers

from tokenloom_engine.constraints.spec import ConstraintSpec
from tokenloom_engine.messages import ModelInfo
from tokenloom_router.config import RouterConfig
from tokenloom_router.errors import ValidationError
from tokenloom_router.healing import TokenHealing
from tokenloom_router.request import GenerateRequest
from tokenloom_router.tokenizer import Tokenizer
from tokenloom_router.validation import Validation

LINK = 'The link is <a href="http:'


@pytest.fixture(scope="module")
def tokenizer(tokenizer_file: Path) -> Tokenizer:
    return Tokenizer(str(tokenizer_file))


@pytest.fixture(scope="module")
def healing(tokenizer: Tokenizer) -> TokenHealing:
    return TokenHealing(tokenizer)


@pytest.fixture(scope="module")
async def validation(model: ModelInfo) -> AsyncIterator[Validation]:
    validation = await Validation.load(RouterConfig(max_total_tokens=100), model)
    yield validation
    validation.close()


@pytest.mark.parametrize(
    ("prompt", "num_healed", "text"),
    [
        (LINK, 1, ":"),
        ("The quick brown fox jumps over the la", 1, " la"),
        ("The quick brown fox jum", 2, " jum"),  # in two tokens; ` jump` is one
        ("Answer: ", 1, " "),
        ("<|im_start|>assistant\nHe", 1, "He"),
        ("one\n", 1, "\n"),
        ("naïv", 2, "ïv"),
        ("1234", 0, ""),  # no token has two digits
        ("supercalifragilistic", 1, "istic"),
        # Not the whole prompt, and nothing that is not text.
        ("The", 0, ""),
        ("hi<|im_end|>", 0, ""),
        ("hi<|im_end|>la", 0, ""),
        # Characters of several tokens, which no longer token continues.
        ("你好", 0, ""),
        ("Good 👍🏽", 0, ""),
        ("क्षि", 0, ""),
    ],
)
def test_what_is_taken_off(
    healing: TokenHealing, tokenizer: Tokenizer, prompt: str, num_healed: int, text: str
) -> None:
    ids = tokenizer.encode(prompt)
    healed = healing.heal(ids)
    assert (healed.num_healed, healed.text) == (num_healed, text)
    assert healed.ids == ids[: len(ids) - num_healed]


def test_most_tokens_that_begin_a_longer_one_are_taken_off(
    healing: TokenHealing, tokenizer: Tokenizer
) -> None:
    """By the definition, over all ends of many prompts."""
    vocabulary = tokenizers.Tokenizer.from_str(tokenizer.json)
    texts = [vocabulary.decode([id]) for id in range(17, vocabulary.get_vocab_size())]
    beginnings = {text[:length] for text in texts for length in range(1, len(text))}
    prose = "I'd bet: naïve users (about 1,234) visit https://www.example.org/index.html?q=a b  c"
    for end in range(1, len(prose)):
        ids = tokenizer.encode(prose[:end])
        ends = [vocabulary.decode(ids[-count:]) for count in range(1, len(ids))]
        assert healing.heal(ids).text == max(beginnings.intersection(ends), key=len, default="")


def test_a_decoder_that_drops_the_first_space(tmp_path: Path) -> None:
    """The first word of a SentencePiece text has a space in its token that its text has not."""
    tokenizer = tokenizers.Tokenizer(
        models.BPE(
            vocab={"<s>": 0, **{t: i + 1 for i, t in enumerate(["▁", "a", "b", "▁a", "▁ab"])}},
            merges=[("▁", "a"), ("▁a", "b")],
        )
    )
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer.add_special_tokens(["<s>"])
    file = str(tmp_path / "tokenizer.json")
    tokenizer.save(file)
    healing = TokenHealing(Tokenizer(file))
    assert healing.heal(tokenizer.encode("a a").ids).text == " a"
    assert healing.heal([0, *tokenizer.encode("a").ids]).num_healed == 0


async def test_a_healed_request(validation: Validation, tokenizer: Tokenizer) -> None:
    request = GenerateRequest(inputs=LINK, token_healing=True)
    ids = tokenizer.encode(LINK)
    valid = await validation.validate(request)
    assert valid.prompt_ids == ids[:-1]
    assert (valid.healed_tokens, valid.input_length) == (1, len(ids) - 1)
    assert valid.stopping.max_new_tokens == 100 - valid.input_length
    assert valid.constraint == ConstraintSpec("text", prefix=":")
    assert valid.inputs == LINK


async def test_the_requests_own_constraint_stays(validation: Validation) -> None:
    spec = ConstraintSpec("regex", "[a-z]+")
    request = GenerateRequest(inputs=LINK, token_healing=True, constraint=spec)
    valid = await validation.validate(request)
    assert valid.constraint == ConstraintSpec("regex", "[a-z]+", prefix=":")
    broken = replace(request, constraint=ConstraintSpec("grammar", "start: missing"))
    with pytest.raises(ValidationError, match=r'grammar is not valid: .*unknown name: "missing"'):
        await validation.validate(broken)


async def test_what_needs_no_healing_stays(validation: Validation, tokenizer: Tokenizer) -> None:
    for inputs in ("The", "1234", "你好"):
        valid = await validation.validate(GenerateRequest(inputs=inputs, token_healing=True))
        plain = await validation.validate(GenerateRequest(inputs=inputs))
        assert valid == plain
        assert valid.healed_tokens == 0
    truncated = GenerateRequest(inputs=LINK, token_healing=True, truncate=1)
    assert (await validation.validate(truncated)).prompt_ids == tokenizer.encode(LINK)[-1:]


async def test_healing_needs_constraints(model: ModelInfo) -> None:
    validation = await Validation.load(RouterConfig(disable_grammar_support=True), model)
    with pytest.raises(ValidationError, match="`token_healing` is not supported"):
        await validation.validate(GenerateRequest(inputs=LINK, token_healing=True))
    validation.close()
