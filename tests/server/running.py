"""A real HTTP server over a scripted engine, in a thread of the test process."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from tokenloom_engine.messages import SequenceOutput
from tokenloom_router.metrics import Metrics
from tokenloom_router.router import Router
from tokenloom_server.app import create_app
from tokenloom_server.configs import engine_config, router_config
from tokenloom_server.http_server import HttpServer
from tokenloom_server.listener import bind, url
from tokenloom_server.serve import loop_factory
from tokenloom_server.settings import Settings

SCRIPTED_ENGINE = Path(__file__).with_name("scripted_engine.py")


@dataclass(frozen=True)
class RunningServer:
    """Where it is, and what it runs."""

    url: str
    router: Router
    metrics: Metrics

    @property
    def port(self) -> int:
        return int(self.url.rsplit(":", 1)[1])


def scripted_router(settings: Settings, metrics: Metrics, tokenizer_file: Path) -> Router:
    """A router whose engine is the scripted one."""
    command = (sys.executable, str(SCRIPTED_ENGINE), str(tokenizer_file))
    return Router(router_config(settings), engine_config(settings), metrics, engine_command=command)


@contextmanager
def running(tokenizer_file: Path, **given: Any) -> Iterator[RunningServer]:  # noqa: ANN401
    """Serve until the block is left. `given` are settings."""
    settings = Settings(**{"model_id": "scripted", "hostname": "127.0.0.1", "port": 0, **given})
    metrics = Metrics()
    router = scripted_router(settings, metrics, tokenizer_file)
    app = create_app(settings, router, metrics)
    server = HttpServer(app, router, settings)
    with bind(settings.hostname, settings.port) as listener:
        address = url(listener)

        async def run() -> None:
            async with app.router.lifespan_context(app):
                await server.serve(sockets=[listener])

        def run_in_loop() -> None:
            with asyncio.Runner(loop_factory=loop_factory()) as runner:
                runner.run(run())

        thread = threading.Thread(target=run_in_loop)
        thread.start()
        try:
            while not server.started:
                thread.join(0.01)
                assert thread.is_alive(), "the server did not start"
            yield RunningServer(address, router, metrics)
        finally:
            server.should_exit = True
            thread.join()


def script(*outputs: SequenceOutput) -> str:
    """A stop string that makes the scripted engine send these."""
    return msgspec.json.encode(outputs).decode()
