"""A front process with a router over the engine double; prints the engine's process id."""

from __future__ import annotations

import sys
from pathlib import Path

import anyio

from tokenloom_engine.config import EngineConfig
from tokenloom_router.config import RouterConfig
from tokenloom_router.metrics import Metrics
from tokenloom_router.router import Router


async def main(model_path: str) -> None:
    double = Path(__file__).with_name("engine_double.py")
    router = Router(
        RouterConfig(),
        EngineConfig(model_id=model_path),
        Metrics(),
        engine_command=(sys.executable, str(double)),
    )
    async with router.running():
        sys.stdout.write(f"{router.engine_pids[0]}\n")
        sys.stdout.flush()
        await anyio.sleep_forever()


if __name__ == "__main__":
    anyio.run(main, sys.argv[1])
