"""A model's generation_config.json is taken as it is, or refused by name."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tokenloom_engine.messages import ModelInfo
from tokenloom_router.config import RouterConfig
from tokenloom_router.errors import EngineStartError
from tokenloom_router.sampling_defaults import SamplingDefaults
from tokenloom_router.validation import Validation


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{}", {}),
        ('{"eos_token_id": [1, 2], "do_sample": true, "top_k": null}', {}),
        (
            '{"temperature": 0, "top_p": 1, "top_k": 20, "min_p": 0.1, "repetition_penalty": 1.05}',
            {
                "temperature": 0,
                "top_p": 1,
                "top_k": 20,
                "min_p": 0.1,
                "repetition_penalty": 1.05,
            },
        ),
    ],
)
def test_what_the_file_says(tmp_path: Path, text: str, expected: dict[str, float]) -> None:
    (tmp_path / "generation_config.json").write_text(text)
    assert msgspec.to_builtins(SamplingDefaults.read(tmp_path)) == expected


def test_no_file_says_nothing(tmp_path: Path) -> None:
    defaults = SamplingDefaults.read(tmp_path)
    assert defaults == SamplingDefaults() and not str(defaults)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"temperature": -1}', "temperature"),
        ('{"temperature": NaN}', "malformed"),
        ('{"top_p": 1.5}', "top_p"),
        ('{"top_k": 1.5}', "top_k"),
        ('{"repetition_penalty": 0}', "repetition_penalty"),
        ('{"min_p": "much"}', "min_p"),
        ("[]", "Expected `object`"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "generation_config.json").write_text(text)
    with pytest.raises(ValueError, match=words):
        SamplingDefaults.read(tmp_path)


async def test_a_wrong_file_ends_the_start_unless_it_is_not_asked(
    model: ModelInfo, tmp_path: Path
) -> None:
    (tmp_path / "generation_config.json").write_text('{"top_p": 1.5}')
    own = msgspec.structs.replace(model, model_path=str(tmp_path))
    with pytest.raises(EngineStartError, match=r"top_p.*--generation-config none"):
        await Validation.load(RouterConfig(disable_grammar_support=True), own)
    config = RouterConfig(disable_grammar_support=True, generation_config=False)
    validation = await Validation.load(config, own)
    assert validation.sampling_defaults == SamplingDefaults()
    validation.close()
