"""Running the server: from the port, which is taken first, to the last response."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import socket
from collections.abc import Callable

from fastapi import FastAPI

from tokenloom_engine.config import EngineConfig
from tokenloom_engine.logs import configure_logging
from tokenloom_router.config import RouterConfig
from tokenloom_router.errors import EngineStartError
from tokenloom_router.metrics import Metrics
from tokenloom_router.router import Router
from tokenloom_server.app import create_app
from tokenloom_server.environment import (
    ignored_hostname,
    ignored_variables,
    take_notify_socket,
    take_watchdog_seconds,
)
from tokenloom_server.http_server import HttpServer
from tokenloom_server.listener import PortError, bind
from tokenloom_server.log_queue import queued_logs
from tokenloom_server.service_notifier import ServiceNotifier
from tokenloom_server.settings import Settings
from tokenloom_server.tgi_flags import remarks

logger = logging.getLogger(__name__)


def serve(settings: Settings, engine: EngineConfig, router_config: RouterConfig) -> int:
    """Serve until a signal ends it. Returns the exit status."""
    configure_logging(json_output=settings.json_output, level=settings.log_level)
    if "hostname" not in settings.model_fields_set and (name := ignored_hostname()):
        logger.warning("Invalid hostname %s, defaulting to %s", name, settings.hostname)
    for line in (*remarks(settings.given), *ignored_variables()):
        logger.warning("%s", line)
    logger.info("Loading %s", engine.model_id)
    metrics = Metrics()
    return run(settings, Router(router_config, engine, metrics), metrics)


def run(settings: Settings, router: Router, metrics: Metrics) -> int:
    """Serve what a router offers. The port is taken before the router is started."""
    notifier = ServiceNotifier(take_notify_socket(), take_watchdog_seconds())
    notifier.loading(settings.model_id or "the bundled model")
    app = create_app(settings, router, metrics)
    server = HttpServer(app, router, settings, notifier)
    try:
        with (
            queued_logs(),
            bind(settings.hostname, settings.port) as listener,
            asyncio.Runner(loop_factory=loop_factory()) as runner,
        ):
            runner.run(_run(server, app, listener))
    except (PortError, EngineStartError) as error:
        notifier.failed(str(error))
        logger.error("%s", error)
        return 1
    except asyncio.CancelledError:
        logger.info("Stopped before the model was loaded")
    return 0


async def _run(server: HttpServer, app: FastAPI, listener: socket.socket) -> None:
    """Load the model, then listen and serve, until a signal."""
    _handle_signals(server)
    async with app.router.lifespan_context(app):
        app.openapi()  # made once, and kept: takes a while
        _settle_memory()
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        overdue = asyncio.create_task(server.overdue())
        watching = asyncio.create_task(server.watch())
        await asyncio.wait({serving, overdue}, return_when=asyncio.FIRST_COMPLETED)
        overdue.cancel()
        watching.cancel()
    # Without the router, the requests that still run end with an error.
    await serving


def _settle_memory() -> None:
    """Leave what is there now out of garbage collections, which hold up everybody by 50 ms."""
    gc.collect()
    gc.freeze()


def _handle_signals(server: HttpServer) -> None:
    """Let SIGINT and SIGTERM break off the loading, or stop the server in order, then at once."""
    loop = asyncio.get_running_loop()
    loading = asyncio.current_task()
    assert loading is not None, "a coroutine runs in a task"

    def stop() -> None:
        if server.started:
            server.stop()
        else:
            loading.cancel()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's, where there is a uvloop."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
