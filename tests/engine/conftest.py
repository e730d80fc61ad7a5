"""Real engines over the bundled model, one for each set of settings.

No constraint is slow to them, and they wait for every mask: what a test sees does not depend on how
fast the machine is.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from tests.engine.clocks import manual_latency
from tokenloom_engine.config import EngineConfig
from tokenloom_engine.engine import Engine

MakeEngine = Callable[..., Engine]
Encode = Callable[[str], list[int]]


@pytest.fixture
def make_engine(model_path: Path) -> Iterator[MakeEngine]:
    """Load an engine in float32 with a small KV cache, unless told otherwise."""
    engines: list[Engine] = []

    def make(**settings: Any) -> Engine:  # noqa: ANN401 - any of EngineConfig's
        defaults = {
            "model_id": str(model_path),
            "dtype": "float32",
            "max_batch_total_tokens": 4096,
            "block_size": 16,
        }
        config = EngineConfig(**{**defaults, **settings})
        engines.append(Engine(config, latency=manual_latency()))
        return engines[-1]

    yield make
    while engines:
        engines.pop().close()
    gc.collect()  # weights in a cycle of references would stay for long


@pytest.fixture(scope="module")
def engine(model_path: Path) -> Iterator[Engine]:
    """An engine that the tests of a module share."""
    engine = Engine(
        EngineConfig(
            model_id=str(model_path), dtype="float32", max_batch_total_tokens=4096, block_size=16
        ),
        latency=manual_latency(),
    )
    yield engine
    engine.close()
    del engine
    gc.collect()


@pytest.fixture(scope="session")
def encode(tokenizer_file: Path) -> Encode:
    """Text to the bundled model's token ids."""
    tokenizer = Tokenizer.from_file(str(tokenizer_file))

    def encode(text: str) -> list[int]:
        ids: list[int] = tokenizer.encode(text).ids
        return ids

    return encode
