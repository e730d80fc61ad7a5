"""What the router's tests share."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tokenloom_engine.config import EngineConfig
from tokenloom_engine.messages import ModelInfo
from tokenloom_router.config import RouterConfig
from tokenloom_router.metrics import Metrics
from tokenloom_router.router import Router

DOUBLE = Path(__file__).with_name("engine_double.py")

RunRouter = Callable[..., AbstractAsyncContextManager[Router]]


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture(scope="session")
def model(model_path: Path, tokenizer_file: Path) -> ModelInfo:
    """What an engine says of the bundled model, with a small KV cache."""
    return ModelInfo(
        model_id="bundled",
        model_path=str(model_path),
        tokenizer_file=str(tokenizer_file),
        sha=None,
        model_type="llama",
        dtype="float32",
        device="cpu",
        attention="sdpa",
        vocab_size=49152,
        eos_token_ids=[2],
        max_position_embeddings=2048,
        max_batch_total_tokens=4096,
        max_batch_prefill_tokens=512,
        max_batch_size=None,
    )


@pytest.fixture
def run_router(model_path: Path, metrics: Metrics) -> RunRouter:
    """Run a router over engine doubles: flags of the double, settings of the router.

    Without grammar support unless asked for, which saves a fifth of a second.
    """

    @asynccontextmanager
    async def run(
        *flags: str,
        replicas: int = 1,
        **config: Any,  # noqa: ANN401
    ) -> AsyncIterator[Router]:
        settings: dict[str, Any] = {"disable_grammar_support": True, **config}
        router = Router(
            RouterConfig(**settings),
            EngineConfig(model_id=str(model_path), replicas=replicas),
            metrics,
            engine_command=(sys.executable, str(DOUBLE), *flags),
        )
        async with router.running():
            yield router

    return run
