"""From a model id to a local folder that transformers can load."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tokenloom_engine.cache import cache_folder, keep
from tokenloom_engine.errors import LoadError, one_line

logger = logging.getLogger(__name__)

GGUF_READING = 2
"""Changes where the same GGUF file is read otherwise than before, and is to be converted anew."""
HUB_PATTERNS = ["*.json", "*.safetensors", "*.model", "*.txt", "*.jinja", "*.py"]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A model's files."""

    path: Path
    sha: str | None
    """The Hub's commit, if it came from there."""


def resolve_checkpoint(model_id: str, revision: str | None, dtype: torch.dtype) -> Checkpoint:
    """Find or fetch the model. A GGUF file is converted once, to `dtype`. Raises LoadError."""
    path = Path(model_id).expanduser()
    if path.suffix == ".gguf":
        return Checkpoint(_convert_gguf(path, dtype), None)
    if path.is_dir():
        _check_folder(path)
        return Checkpoint(path, None)
    return _fetch(model_id, revision)


def custom_code(folder: Path) -> list[str]:
    """The files of code that a model brings, by the `auto_map` of its settings."""
    modules: set[str] = set()
    for name in ("config.json", "tokenizer_config.json"):
        auto_map = _read_json(folder / name).get("auto_map")
        values = auto_map.values() if isinstance(auto_map, dict) else [auto_map]
        for value in values:
            for reference in value if isinstance(value, list) else [value]:
                if isinstance(reference, str):  # [REPOSITORY--]MODULE.CLASS
                    modules.add(reference.rpartition(".")[0])
    return sorted(f"{module}.py" for module in modules)


def _check_folder(path: Path) -> None:
    _check_permissions(path)
    if (path / "adapter_config.json").is_file():
        base = _read_json(path / "adapter_config.json").get("base_model_name_or_path")
        raise LoadError(
            f"the folder {path} is an adapter of {base or 'another model'}, and adapters are not "
            "applied: merge it into the weights of that model, and serve the result (without "
            "adapter_config.json)"
        )
    if not (path / "config.json").is_file():
        raise LoadError(f"the folder {path} is no model: it has no config.json")


def _check_permissions(folder: Path) -> None:
    """Raise LoadError if a file cannot be read, which libraries report as a missing one."""
    place = folder
    try:
        for place in sorted(folder.iterdir()):
            if place.is_file():
                place.open("rb").close()
    except PermissionError as error:
        raise LoadError(
            f"user {os.geteuid()} cannot read {place} of user {place.stat().st_uid}: serve as "
            "that user, or change the permissions"
        ) from error


def _read_json(file: Path) -> dict[str, Any]:
    """The object in a file; empty if there is none, which whoever needs it will say."""
    try:
        value = json.loads(file.read_text())
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def _fetch(model_id: str, revision: str | None) -> Checkpoint:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    try:
        path = Path(snapshot_download(model_id, revision=revision, allow_patterns=HUB_PATTERNS))
    except HFValidationError as error:
        raise LoadError(
            f"{model_id!r} is neither a folder, nor a GGUF file, nor a Hub model id"
        ) from error
    except (HfHubHTTPError, OSError, ValueError) as error:
        raise LoadError(
            f"cannot fetch the model {model_id!r} from the Hub: {one_line(error)}"
        ) from error
    _check_folder(path)
    return Checkpoint(path, path.name)


def _convert_gguf(file: Path, dtype: torch.dtype) -> Path:
    if not file.is_file():
        raise LoadError(f"there is no file {file}")
    with file.open("rb") as stream:
        if stream.read(4) != b"GGUF":
            raise LoadError(f"{file} is not a GGUF file")
        stream.seek(0)
        digest = hashlib.file_digest(stream, "blake2b").hexdigest()[:16]
    name = f"{file.stem}-{digest}-{str(dtype).removeprefix('torch.')}-{GGUF_READING}"
    folder = cache_folder() / "models" / name
    if not folder.is_dir():
        logger.info("Reading %s (only now; it is then kept in %s)", file.name, folder)
    return keep(folder, lambda target: _read_gguf(file, dtype, target))


def _read_gguf(file: Path, dtype: torch.dtype, target: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from tokenloom_engine.gguf_metadata import read_gguf_config
    from tokenloom_engine.pretrained import load_pretrained

    try:
        model = load_pretrained(
            file.parent,
            gguf_file=file.name,
            config=read_gguf_config(file),
            dtype=torch.float32,
        )
        tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    except Exception as error:  # the readers raise whatever a broken file makes them
        raise LoadError(f"cannot read {file}: {one_line(error)}") from error
    # A model that is marked as quantized refuses to be saved; its weights are not any more.
    settings = model.config.to_dict()
    settings.pop("quantization_config", None)
    config = type(model.config).from_dict(settings)
    plain = AutoModelForCausalLM.from_config(config, dtype=dtype)  # type: ignore[no-untyped-call]
    plain.load_state_dict(model.state_dict())
    plain.generation_config = model.generation_config
    try:
        plain.save_pretrained(target)
        tokenizer.save_pretrained(target)
    except Exception as error:  # each of the libraries that write has its own
        raise LoadError(
            f"cannot write to the cache folder {target.parent} ({one_line(error)}); free some "
            "space, or set XDG_CACHE_HOME to a folder on another disk"
        ) from error
