"""Models that are not there or not whole: one line that says so."""

from __future__ import annotations

import json
import os
import struct
import tempfile
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from tokenloom_engine.checkpoint import resolve_checkpoint
from tokenloom_engine.config import EngineConfig
from tokenloom_engine.errors import LoadError
from tokenloom_engine.model_runner import ModelRunner


def test_a_gguf_file_is_converted_once(gguf_path: Path, model_path: Path) -> None:
    before = (model_path / "model.safetensors").stat().st_mtime_ns
    again = resolve_checkpoint(str(gguf_path), None, torch.bfloat16)
    assert again.path == model_path
    assert (model_path / "model.safetensors").stat().st_mtime_ns == before
    config = json.loads((model_path / "config.json").read_text())
    assert config["model_type"] == "llama" and "quantization_config" not in config


@pytest.mark.parametrize(
    ("contents", "reason"),
    [
        (b"", "not a GGUF file"),
        (b"GGML" + bytes(100), "not a GGUF file"),
        (b"GGUF" + bytes(3), "cannot read"),
        (b"GGUF" + struct.pack("<IQQ", 3, 1, 1) + struct.pack("<Q", 2**62), "cannot read"),
    ],
)
def test_a_broken_gguf_file(tmp_path: Path, contents: bytes, reason: str) -> None:
    file = tmp_path / "broken.gguf"
    file.write_bytes(contents)
    with pytest.raises(LoadError, match=reason) as raised:
        resolve_checkpoint(str(file), None, torch.bfloat16)
    assert "\n" not in str(raised.value)


def test_a_folder_without_a_model(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match=r"no config\.json"):
        resolve_checkpoint(str(tmp_path), None, torch.bfloat16)


@pytest.mark.parametrize("has_config", [False, True])
def test_an_adapter(tmp_path: Path, has_config: bool) -> None:
    settings = {"base_model_name_or_path": "org/base", "peft_type": "LORA"}
    (tmp_path / "adapter_config.json").write_text(json.dumps(settings))
    if has_config:
        (tmp_path / "config.json").write_text("{}")
    with pytest.raises(LoadError, match="is an adapter of org/base.*merge it"):
        resolve_checkpoint(str(tmp_path), None, torch.bfloat16)


def test_a_folder_without_a_tokenizer(tmp_path: Path, model_path: Path) -> None:
    for file in ("config.json", "model.safetensors"):
        (tmp_path / file).symlink_to(model_path / file)
    with pytest.raises(LoadError, match="cannot load the tokenizer of") as raised:
        ModelRunner(EngineConfig(model_id=str(tmp_path)))
    message = str(raised.value)
    assert "\n" not in message and not message.endswith(":")
    assert "library serialization file" in message


def test_a_tokenizer_that_is_larger_than_the_model(tmp_path: Path, model_path: Path) -> None:
    AutoTokenizer.from_pretrained(model_path).save_pretrained(tmp_path)
    config = LlamaConfig(
        vocab_size=300,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=1,
        num_attention_heads=2,
    )
    LlamaForCausalLM(config).save_pretrained(tmp_path)
    with pytest.raises(LoadError, match="has 49152 tokens, and the model 300 embeddings"):
        ModelRunner(EngineConfig(model_id=str(tmp_path)))


def test_code_that_is_not_run_is_named(
    tmp_path: Path, model_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The architecture is one that transformers has as well, so nothing else would tell."""
    config = json.loads((model_path / "config.json").read_text())
    config["auto_map"] = {"AutoModelForCausalLM": "modeling_own.OwnForCausalLM"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    code = {"auto_map": {"AutoTokenizer": ["tokenization_own.OwnTokenizer", None]}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(code))
    with pytest.raises(LoadError):  # there are no weights
        ModelRunner(EngineConfig(model_id=str(tmp_path)))
    (warning,) = (message for message in caplog.messages if "`trust_remote_code`" in message)
    assert "modeling_own.py, tokenization_own.py" in warning


def test_a_folder_without_weights(tmp_path: Path, model_path: Path) -> None:
    (tmp_path / "config.json").write_text((model_path / "config.json").read_text())
    with pytest.raises(LoadError, match="cannot load the model"):
        ModelRunner(EngineConfig(model_id=str(tmp_path)))


def test_a_name_that_is_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(LoadError, match="neither a folder, nor a GGUF file, nor a Hub model id"):
        resolve_checkpoint("../no/such/model", None, torch.bfloat16)


def test_a_length_that_does_not_fit(model_path: Path) -> None:
    config = EngineConfig(
        model_id=str(model_path), max_total_tokens=4096, max_batch_total_tokens=2048
    )
    with pytest.raises(LoadError, match="Not enough memory to handle `max_total_tokens=4096`"):
        ModelRunner(config)


@pytest.mark.parametrize("is_folder", [False, True])
def test_files_of_another_user(is_folder: bool) -> None:
    with tempfile.TemporaryDirectory(prefix="tokenloom-test-") as name:
        folder = Path(name)
        (folder / "config.json").write_text("{}")
        weights = folder / "model.safetensors"
        weights.touch()
        unreadable = folder if is_folder else weights
        folder.chmod(0o755)
        unreadable.chmod(0)
        user = os.geteuid()
        try:
            if user == 0:  # root may read everything
                os.seteuid(65534)
            with pytest.raises(LoadError) as raised:
                resolve_checkpoint(name, None, torch.float32)
        finally:
            os.seteuid(user)
            folder.chmod(0o755)
        reader, owner = (65534 if user == 0 else user), user
        assert str(raised.value) == (
            f"user {reader} cannot read {unreadable} of user {owner}: serve as that user, or "
            "change the permissions"
        )
