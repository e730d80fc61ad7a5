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

from tokenloom_engine.child_environment import child_environment
from tokenloom_engine.frames import FrameBuffer, framed
from tokenloom_router.chat_renderer import Rendering, RenderRequest

COMMAND = (sys.executable, "-m", "tokenloom_router.chat_renderer")
START_SECONDS = 60.0


class RendererError(Exception):
    """The process ended, or was ended because it took too long."""


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
        self._process = subprocess.Popen(COMMAND, stdin=PIPE, stdout=PIPE, env=environment)
        self._frames = FrameBuffer()
        self._is_ready = False

    def render(self, request: RenderRequest, seconds: float) -> Rendering:
        """Render a chat. Raise RendererError if it takes longer; the process is then of no use."""
        if not self._is_ready:
            self._read(START_SECONDS)
            self._is_ready = True
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(framed(msgspec.json.encode(request)))
            self._process.stdin.flush()
        except OSError:
            raise RendererError("it ended") from None
        return msgspec.json.decode(self._read(seconds), type=Rendering)

    def close(self) -> None:
        """End the process, whatever it does."""
        self._process.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with suppress(OSError):  # what was not sent
                pipe.close()
        self._process.wait()

    def _read(self, seconds: float) -> bytes:
        """The next message."""
        assert self._process.stdout is not None
        output = self._process.stdout.fileno()
        deadline = time.monotonic() + seconds
        with selectors.DefaultSelector() as selector:
            selector.register(output, selectors.EVENT_READ)
            while (left := deadline - time.monotonic()) > 0 and selector.select(left):
                data = os.read(output, 65536)
                if not data:
                    raise RendererError("it ended")
                for message in self._frames.feed(data):
                    return message
        raise RendererError(f"it takes longer than {seconds:g} seconds")
