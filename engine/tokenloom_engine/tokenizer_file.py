"""The tokenizer as transformers applies it to a model, and the file that the front reads."""

from __future__ import annotations

import hashlib
from pathlib import Path

from transformers import AutoTokenizer

from tokenloom_engine.cache import cache_folder, keep
from tokenloom_engine.errors import LoadError, one_line
from tokenloom_engine.model import Model


def read_tokenizer(
    model: Model, path: Path, *, trust_remote_code: bool
) -> tuple[str, frozenset[int]]:
    """The tokenizer.json's text as transformers applies it, and all ids that end a text."""
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            path, local_files_only=True, trust_remote_code=trust_remote_code
        )
        backend = tokenizer.backend_tokenizer
        backend.no_padding()
        backend.no_truncation()
    except Exception as error:  # whatever a broken tokenizer makes transformers raise
        raise LoadError(f"cannot load the tokenizer of {path}: {one_line(error)}") from error
    own = getattr(model.network.generation_config, "eos_token_id", None)
    ids = {tokenizer.eos_token_id, *(own if isinstance(own, list) else [own])}
    return backend.to_str(), frozenset(id for id in ids if id is not None)


def keep_tokenizer(tokenizer_json: str) -> str:
    """Write the text to the cache folder, for the front process to read."""
    digest = hashlib.blake2b(tokenizer_json.encode(), digest_size=8).hexdigest()
    folder = cache_folder() / "tokenizers" / digest

    def write(target: Path) -> None:
        (target / "tokenizer.json").write_text(tokenizer_json)

    return str(keep(folder, write) / "tokenizer.json")
