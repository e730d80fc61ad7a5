"""The supervisor: keeps an engine process running for as long as the front does."""

from __future__ import annotations

import itertools
import logging
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import anyio
import msgspec
import zmq
from anyio.abc import TaskStatus

from tokenloom_engine.child_environment import child_environment
from tokenloom_engine.config import EngineConfig
from tokenloom_engine.messages import ModelInfo
from tokenloom_engine.temporary_folder import temporary_folder
from tokenloom_router.engine_client import EngineClient
from tokenloom_router.engine_metrics import EngineMetrics
from tokenloom_router.engine_process import EngineProcess
from tokenloom_router.errors import EngineStartError

ENGINE_COMMAND = (sys.executable, "-m", "tokenloom_engine.process")
FIRST_BACKOFF_SECONDS = 0.1
LAST_BACKOFF_SECONDS = 10.0
HEALTHY_SECONDS = 60.0
"""An engine that served for so long gets the first backoff again."""
STALL_TICKS = 10
"""In how many parts the time is watched in which an engine may be silent."""
LAST_WORDS_SECONDS = 0.05
"""How long messages of a process that has ended may still be under way."""

logger = logging.getLogger(__name__)


class EngineSupervisor:
    """Starts the engine process, notices its end, and starts it again with backoff."""

    def __init__(
        self,
        config: EngineConfig,
        client: EngineClient,
        metrics: EngineMetrics,
        stall_seconds: float,
        command: Sequence[str] = ENGINE_COMMAND,
    ) -> None:
        """`command` takes two more arguments: the address and the settings as JSON.

        An engine that was ready and then says nothing for `stall_seconds` is ended.
        """
        self._config = config
        self._client = client
        self._metrics = metrics
        self._stall_seconds = stall_seconds
        self._command = command
        self._log = logging.LoggerAdapter(logger, config.log_fields)
        self._ready_at: float | None = None
        self.pid: int | None = None
        """Of the engine process, while there is one."""

    async def run(
        self, on_start: Callable[[], None], *, task_status: TaskStatus[ModelInfo]
    ) -> None:
        """Keep the engine running until cancelled. Started when the first process is ready.

        `on_start` is called each time that a process is ready. Raise EngineStartError if the first
        one never is.
        """
        first_model: ModelInfo | None = None

        def on_ready(model: ModelInfo) -> None:
            nonlocal first_model
            self._ready_at = time.monotonic()
            on_start()
            if first_model is None:
                first_model = model
                # A later engine takes what this one chose: the server's limits stay true.
                self._config = _pinned(self._config, model)
                task_status.started(model)

        backoff = FIRST_BACKOFF_SECONDS
        with _socket_folder() as folder:
            for number in itertools.count(1):
                reason = await self._run_once(f"ipc://{folder}/engine-{number}", on_ready)
                if first_model is None:
                    raise EngineStartError(reason)
                if self._served_seconds() >= HEALTHY_SECONDS:
                    backoff = FIRST_BACKOFF_SECONDS
                self._log.error("%s; starting it again in %.1f s", reason, backoff)
                await anyio.sleep(backoff)
                backoff = min(2 * backoff, LAST_BACKOFF_SECONDS)
                self._metrics.restarted()

    async def _run_once(self, address: str, on_ready: Callable[[ModelInfo], None]) -> str:
        """Start one engine process and serve until it ends. Return why it ended."""
        self._ready_at = None
        settings = msgspec.json.encode(self._config).decode()
        command = [*self._command, address, settings]
        is_local = Path(self._config.model_id).expanduser().exists()
        environment = child_environment(downloads=not is_local, gpus=_own_gpus(self._config))
        try:
            with self._client.connected(address):
                async with EngineProcess.started(command, environment) as process:
                    self.pid = process.pid
                    reason = await self._serve(process, on_ready)
                    self._client.lose(reason)
        except (OSError, zmq.ZMQError) as error:
            return f"engine process cannot be started: {error}"
        finally:
            self.pid = None
        return reason

    async def _serve(self, process: EngineProcess, on_ready: Callable[[ModelInfo], None]) -> str:
        """Receive until the process ends or says that it cannot go on. Return why."""
        reason = ""
        async with anyio.create_task_group() as tasks:

            async def watch() -> None:
                await process.wait()
                self._client.refuse()
                await anyio.sleep(LAST_WORDS_SECONDS)
                tasks.cancel_scope.cancel()

            async def watch_progress() -> None:
                nonlocal reason
                await self._stall()
                reason = f"engine process made no progress for {self._stall_seconds:g} s"
                self._log.error(
                    "The engine process is silent, and ended for that. If its steps take so long "
                    "on this machine, give it more time: --engine-stall-timeout"
                )
                process.kill()
                tasks.cancel_scope.cancel()

            tasks.start_soon(watch)
            tasks.start_soon(watch_progress)
            reason = await self._client.receive(on_ready)
            tasks.cancel_scope.cancel()
        return reason or process.ending

    async def _stall(self) -> None:
        """Return when a ready engine has been silent for too long.

        Silent ticks are counted, and not seconds, so that a front that was itself stopped for a
        while does not take that for the engine's silence.
        """
        num_silent, num_received = 1, -1
        while num_silent < STALL_TICKS:
            await anyio.sleep(self._stall_seconds / STALL_TICKS)
            is_silent = self._client.is_ready and self._client.num_received == num_received
            num_silent = num_silent + 1 if is_silent else 1
            num_received = self._client.num_received

    def _served_seconds(self) -> float:
        return 0.0 if self._ready_at is None else time.monotonic() - self._ready_at


def _own_gpus(config: EngineConfig) -> range | None:
    """Return which GPUs are for this engine only. The first one sees all, to count them."""
    if config.replica_index == 0 or config.num_shard is None:
        return None
    start = config.replica_index * config.num_shard
    return range(start, start + config.num_shard)


@contextmanager
def _socket_folder() -> Iterator[Path]:
    """Make a folder that only this user can enter, so that nobody else can be the engine."""
    folders = ExitStack()
    try:
        parent = Path(tempfile.gettempdir())
        folder = folders.enter_context(temporary_folder(parent, "tokenloom-socket-"))
    except OSError as error:
        raise EngineStartError(f"no folder for the engine's socket: {error}") from error
    with folders:
        yield folder


def _pinned(config: EngineConfig, model: ModelInfo) -> EngineConfig:
    return msgspec.structs.replace(
        config,
        max_batch_total_tokens=model.max_batch_total_tokens,
        max_batch_prefill_tokens=model.max_batch_prefill_tokens,
        max_batch_size=model.max_batch_size,
    )
