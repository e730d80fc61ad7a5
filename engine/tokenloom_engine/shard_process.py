"""A shard's process as rank 0 sees it: started, told what to compute, and ended for certain."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress

from tokenloom_engine.frames import framed

logger = logging.getLogger(__name__)

STOP_SECONDS = 5.0
"""How long it may take to end by itself, once its standard input is closed."""


class ShardProcess:
    """A child process that reads the rows of each step from its standard input.

    It ends when that is closed, and with the thread that started it: the kernel sees to that, for
    a process that is stopped reads nothing. So the thread stays until the process has ended.
    """

    def __init__(
        self,
        rank: int,
        arguments: list[str],
        environment: dict[str, str],
        on_loss: Callable[[], None],
    ) -> None:
        """Start it. `on_loss` is called, in another thread, if it ends before `close`."""
        self._rank = rank
        self._on_loss = on_loss
        self._is_closing = False
        started: Future[subprocess.Popen[bytes]] = Future()
        command = [sys.executable, "-m", "tokenloom_engine.follower", *arguments]
        self._thread = threading.Thread(
            target=self._run,
            args=(command, environment, started),
            name=f"shard-{rank}",
            daemon=True,
        )
        self._thread.start()
        self._process = started.result()

    def send(self, message: bytes) -> None:
        """Tell it what to compute next. Raises OSError if it has ended."""
        assert self._process.stdin is not None
        self._process.stdin.write(framed(message))
        self._process.stdin.flush()

    def kill(self) -> None:
        """End it at once, which counts as a loss."""
        self._process.kill()

    def close(self) -> None:
        """Let the process end."""
        self._is_closing = True
        assert self._process.stdin is not None
        with suppress(OSError):  # it has ended, in the midst of a message
            self._process.stdin.close()

    def join(self) -> None:
        """Wait until it has, and kill it if it does not."""
        self._thread.join(STOP_SECONDS)
        self._process.kill()
        self._thread.join()

    def _run(
        self,
        command: list[str],
        environment: dict[str, str],
        started: Future[subprocess.Popen[bytes]],
    ) -> None:
        try:
            process = subprocess.Popen(command, stdin=subprocess.PIPE, env=environment)
        except OSError as error:
            started.set_exception(error)
            return
        started.set_result(process)
        code = process.wait()
        if not self._is_closing:
            how = f"exit code {code}" if code >= 0 else f"signal {-code}"
            logger.error("shard %d of the model has ended (%s)", self._rank, how)
            self._on_loss()
