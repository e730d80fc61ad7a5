"""Messages to a service manager: systemd's sd_notify protocol, datagrams of `NAME=value` lines."""

from __future__ import annotations

import asyncio
import logging
import socket

from tokenloom_router.router import Router

TICK_SECONDS = 1.0
"""How often the engine's progress is looked at, at most."""
TICKS_PER_WATCHDOG = 4
"""And how often at least in the time that the watchdog allows."""

logger = logging.getLogger(__name__)


class ServiceNotifier:
    """Reports the state of the server. Does nothing without an address.

    `watchdog_seconds`: how long the service manager waits for a sign of progress, if it does.
    """

    def __init__(self, address: str | None, watchdog_seconds: float | None = None) -> None:
        self._address = address and ("\0" + address[1:] if address[0] == "@" else address)
        self._watchdog_seconds = watchdog_seconds
        self._serving = ""
        self._is_stopping = False

    def loading(self, model_id: str) -> None:
        """Report that a model is being loaded."""
        self._send(f"STATUS=Loading {model_id}")

    def ready(self, status: str) -> None:
        """Report that requests are served."""
        self._serving = status
        self._send("READY=1", f"STATUS={status}")

    def stopping(self, status: str) -> None:
        """Report that the server is about to end."""
        self._is_stopping = True
        self._send("STOPPING=1", f"STATUS={status}")

    def failed(self, reason: str) -> None:
        """Report why the server cannot start."""
        self._send(f"STATUS={reason}")

    async def watch(self, router: Router) -> None:
        """Feed the watchdog while an engine makes progress; report restarts. Never returns."""
        if self._address is None:
            return
        seconds = self._watchdog_seconds
        tick = TICK_SECONDS if seconds is None else min(TICK_SECONDS, seconds / TICKS_PER_WATCHDOG)
        num_messages, num_ready = router.num_engine_messages, router.num_replicas
        while True:
            await asyncio.sleep(tick)
            if seconds is not None and router.num_engine_messages != num_messages:
                num_messages = router.num_engine_messages
                self._send("WATCHDOG=1")
            if router.num_ready != num_ready and not self._is_stopping:
                num_ready = router.num_ready
                self._send(f"STATUS={self._status(num_ready, router.num_replicas)}")

    def _status(self, num_ready: int, num_replicas: int) -> str:
        if num_ready == num_replicas:
            return self._serving
        if num_ready == 0:
            return "The engine is starting again"
        return f"{self._serving}, with {num_ready} of {num_replicas} replicas"

    def _send(self, *lines: str) -> None:
        if self._address is None:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                sender.setblocking(False)
                sender.sendto("\n".join(lines).encode(), self._address)
        except OSError as error:
            logger.warning("The service manager cannot be notified: %s", error)
