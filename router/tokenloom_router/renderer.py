"""The front's end of the process that renders chat templates."""

from __future__ import annotations

import os
import selectors
import subprocess
import sys
import time
from contextlib import suppress
from subprocess import PIPE

import msgspec
import psutil

from tokenloom_engine.child_environment import child_environment
from tokenloom_engine.frames import FrameBuffer, framed
from tokenloom_router.chat_renderer import Rendering, RenderRequest

COMMAND = (sys.executable, "-m", "tokenloom_router.chat_renderer")
START_SECONDS = 60.0
WALL_FACTOR = 4
"""How many times its CPU time a rendering may take, where other work takes the cores."""
POLL_SECONDS = 0.1
"""How often a process that works is looked at."""


class RendererError(Exception):
    """The rendering takes too long. The process is then of no use."""


class RendererLostError(Exception):
    """The process ended, is stopped or gets no CPU time: nothing is known of the chat."""


class Renderer:
    """One process. For one thread at a time."""

    def __init__(self) -> None:
        """Start it. It takes a second to be ready, and the first rendering waits for it."""
        # numpy's threads are of no use there
        environment = {
            **child_environment(),
            "OPENBLAS_NUM_THREADS": "1",
            "TRANSFORMERS_VERBOSITY": "error",
        }
        self._process = subprocess.Popen(
            COMMAND, stdin=PIPE, stdout=PIPE, bufsize=0, env=environment
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._stdin, self._stdout = self._process.stdin, self._process.stdout
        os.set_blocking(self._stdin.fileno(), False)
        self._watched = psutil.Process(self._process.pid)
        self._frames = FrameBuffer()
        self._is_ready = False

    def render(self, request: RenderRequest, seconds: float) -> Rendering:
        """Render a chat in so many seconds of CPU time.

        Raises RendererError or RendererLostError; the process is then of no use.
        """
        message = framed(msgspec.json.encode(request))
        try:
            if not self._is_ready:
                self._exchange(b"", START_SECONDS)
                self._is_ready = True
            return msgspec.json.decode(self._exchange(message, seconds), type=Rendering)
        except (OSError, psutil.NoSuchProcess):
            raise RendererLostError("it ended") from None

    def close(self) -> None:
        """End the process, whatever it does."""
        self._process.kill()
        for pipe in (self._stdin, self._stdout):
            with suppress(OSError):
                pipe.close()
        self._process.wait()

    def _exchange(self, message: bytes, seconds: float) -> bytes:
        """Send a message and return the next one, both within the time."""
        unsent = memoryview(message)
        wall_limit = time.monotonic() + WALL_FACTOR * seconds
        cpu_limit = self._cpu_seconds() + seconds
        with selectors.DefaultSelector() as selector:
            selector.register(self._stdout, selectors.EVENT_READ)
            if unsent:
                selector.register(self._stdin, selectors.EVENT_WRITE)
            while True:
                for key, _ in selector.select(POLL_SECONDS):
                    if key.fileobj is self._stdout:
                        answer = self._read()
                        if answer is not None:
                            return answer
                    else:
                        unsent = unsent[os.write(self._stdin.fileno(), unsent) :]
                        if not unsent:
                            selector.unregister(self._stdin)
                self._check(cpu_limit, wall_limit, seconds)

    def _read(self) -> bytes | None:
        """The next message, if it is whole."""
        data = os.read(self._stdout.fileno(), 65536)
        if not data:
            raise RendererLostError("it ended")
        return next(iter(self._frames.feed(data)), None)

    def _check(self, cpu_limit: float, wall_limit: float, seconds: float) -> None:
        if self._cpu_seconds() > cpu_limit:
            raise RendererError(f"it takes longer than {seconds:g} seconds")
        if self._watched.status() == psutil.STATUS_STOPPED or time.monotonic() > wall_limit:
            raise RendererLostError("it does not run")

    def _cpu_seconds(self) -> float:
        times = self._watched.cpu_times()
        return times.user + times.system
