"""uvicorn, with the start and the end as this server wants them."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import cast

import uvicorn
from fastapi import FastAPI

from tokenloom_router.router import Router
from tokenloom_server.access_log import AccessLog
from tokenloom_server.connections import DEFAULT_CONNECTIONS, Connections, fit_connections
from tokenloom_server.http_protocol import ConnectionLimits, HttpProtocol
from tokenloom_server.listener import PortError, url
from tokenloom_server.service_notifier import ServiceNotifier
from tokenloom_server.settings import Settings

LAST_SECONDS = 10
"""How long responses that are ended may take to reach their clients."""
DRAIN_POLL_SECONDS = 0.05
"""How often it is looked whether requests still run."""
KEEP_ALIVE_SECONDS = 75
"""Longer than proxies keep an idle connection, so that they close it and not we."""

logger = logging.getLogger(__name__)


class HttpServer(uvicorn.Server):
    """Listens on a socket that is bound already, says so, and drains at the end.

    While it drains it goes on listening, so that who asks is told that it is not ready.
    The application's lifespan and the signals are the caller's: an engine that cannot start is
    then an exception like any other, and a signal ends the loading of a model at once.
    """

    def __init__(
        self,
        app: FastAPI,
        router: Router,
        settings: Settings,
        notifier: ServiceNotifier | None = None,
    ) -> None:
        self._connections = Connections(settings.max_connections or DEFAULT_CONNECTIONS)
        limits = ConnectionLimits(
            max_header_bytes=settings.max_header_bytes,
            header_timeout=settings.header_timeout,
            body_timeout=settings.body_timeout,
            send_timeout=settings.send_timeout,
        )
        protocol = partial(
            HttpProtocol,
            limits=limits,
            connections=self._connections,
            access_log=AccessLog() if settings.access_log else None,
        )
        super().__init__(
            uvicorn.Config(
                app,
                http=cast("type[asyncio.Protocol]", protocol),
                lifespan="off",
                ws="none",
                log_config=None,
                log_level="warning",
                access_log=False,
                server_header=False,
                timeout_keep_alive=KEEP_ALIVE_SECONDS,
                timeout_graceful_shutdown=LAST_SECONDS,
            )
        )
        self._is_stopping = asyncio.Event()
        self._is_hurried = asyncio.Event()
        self._router = router
        self._settings = settings
        self._notifier = notifier or ServiceNotifier(None)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signals to the caller, who calls `stop`."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, then tell operator and service manager where. Raises PortError."""
        self._fit_connections()
        try:
            await super().startup(sockets)
        except OSError as error:
            raise PortError(self._settings.hostname, self._settings.port, error) from error
        at = url(self.servers[0].sockets[0])
        model_id = self._router.model.model_id
        logger.info("Ready: %s is served at %s (documentation: %s/docs)", model_id, at, at)
        self._notifier.ready(f"{model_id} is served at {at}")

    def _fit_connections(self) -> None:
        """Allow as many connections as there are file descriptors for, once the others are open."""
        settings, wanted = self._settings, self._connections.limit
        self._connections.limit = fit = fit_connections(wanted)
        permits = settings.max_concurrent_requests
        if fit < (settings.max_connections or permits):
            logger.warning(
                "Only %d connections fit into the limit of open files (`ulimit -n`), with "
                "--max-connections %d and --max-concurrent-requests %d: raise it",
                fit,
                wanted,
                permits,
            )

    async def watch(self) -> None:
        """Tell the service manager of the engine's progress, until cancelled."""
        await self._notifier.watch(self._router)

    def stop(self) -> None:
        """Take no more requests, and end with the last one that runs. Again: end
        running requests with an error. Once more: wait for nothing."""
        if self._is_hurried.is_set():
            self.force_exit = True
        elif self.should_exit:
            # Requests end with an error, and uvicorn waits until it is sent: else it would cancel
            # them, and log a traceback for each.
            logger.info("Stopping at once")
            self._is_hurried.set()
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Wait for the requests that run, as long as they may take; then close."""
        seconds = self._settings.graceful_termination_timeout
        status = f"Stopping: running requests get {seconds} s to finish"
        logger.info(status)
        self._notifier.stopping(status)
        self._router.drain()
        self._is_stopping.set()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._router.num_open_requests and not self._is_hurried.is_set():
                    await asyncio.sleep(DRAIN_POLL_SECONDS)
        await super().shutdown(sockets)

    async def overdue(self) -> None:
        """Return when the server was stopped and running requests have had their time."""
        await self._is_stopping.wait()
        with suppress(TimeoutError):
            async with asyncio.timeout(self._settings.graceful_termination_timeout):
                await self._is_hurried.wait()
