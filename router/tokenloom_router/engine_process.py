"""One run of the engine process: started, watched, and ended for certain."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

import anyio
from anyio.abc import Process

STOP_SECONDS = 5.0
"""How long a process may take to end by itself, once its standard input is closed."""


class EngineProcess:
    """A child process that lives as long as the front holds its standard input open."""

    def __init__(self, process: Process) -> None:
        self._process = process

    @classmethod
    @asynccontextmanager
    async def started(
        cls, command: Sequence[str], environment: Mapping[str, str]
    ) -> AsyncIterator[EngineProcess]:
        """Start `command`. Leaving the block ends the process. Raise OSError if it cannot start.

        The process shares our standard output and error, for its logs and progress.
        """
        with anyio.CancelScope(shield=True):  # cancelled half-way, it would leave a process behind
            process = await anyio.open_process(
                command, stdin=subprocess.PIPE, stdout=None, stderr=None, env=environment
            )
        engine_process = cls(process)
        try:
            yield engine_process
        finally:
            with anyio.CancelScope(shield=True):
                await engine_process.stop()

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def ending(self) -> str:
        """How the process ended, for the operator and the clients."""
        code = self._process.returncode
        if code is None:
            return "engine process was stopped"
        how = f"exit code {code}" if code >= 0 else f"signal {-code}"
        return f"engine process ended unexpectedly ({how})"

    async def wait(self) -> None:
        """Return when the process has ended, in whatever way."""
        await self._process.wait()

    def kill(self) -> None:
        """End the process at once. It may be stopped or stuck."""
        if self._process.returncode is None:
            self._process.send_signal(signal.SIGKILL)

    async def stop(self) -> None:
        """Ask the process to end; kill it if it does not."""
        assert self._process.stdin is not None
        await self._process.stdin.aclose()
        with anyio.move_on_after(STOP_SECONDS):
            await self._process.wait()
        self.kill()
        await self._process.aclose()
