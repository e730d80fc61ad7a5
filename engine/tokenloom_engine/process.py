"""The engine process: a loop that takes messages, steps the engine, and sends what came of it.

Started by the front as `python -m tokenloom_engine.process ADDRESS CONFIG_JSON`. It ends when
its standard input closes, which is when the front has gone, however it went.
"""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING, NoReturn

import msgspec
import zmq

from tokenloom_engine.config import EngineConfig
from tokenloom_engine.errors import DeviceError, LoadError, one_line
from tokenloom_engine.logs import configure_logging, tame_libraries
from tokenloom_engine.messages import (
    Abort,
    Fatal,
    Heartbeat,
    Inbound,
    Outbound,
    Ready,
    StepOutputs,
    Submit,
)

if TYPE_CHECKING:
    from tokenloom_engine.engine import Engine

logger = logging.getLogger(__name__)

COMPILE_POLL_MS = 2
"""How often an otherwise idle engine looks whether a constraint has compiled."""
HEARTBEAT_SECONDS = 0.5
"""How long an engine is silent at most, unless it is stuck in a step."""
LAST_WORDS_SECONDS = 1.0
"""How long an engine that lost a shard may still say why: all of them may have met the same."""

SWITCH_SECONDS = 0.0005
"""How long another thread, one that compiles a grammar, may run Python when a step wants to: by
default ten times as long, several times in a step."""


class EngineProcess:
    """The batching task."""

    def __init__(self, config: EngineConfig, address: str) -> None:
        self._config = config
        self._socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.PAIR)
        self._socket.set_hwm(0)  # bounded by the router's permits
        self._socket.setsockopt(zmq.LINGER, 1000)
        self._socket.connect(address)
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(Inbound)
        self._sent_at = 0.0

    def run(self) -> int:
        """Load, then serve until the process is ended. Returns an exit code."""
        try:
            self._set_priority()
            from tokenloom_engine.engine import Engine

            tame_libraries(with_progress=sys.stderr.isatty() and not self._config.json_output)
            engine = Engine(self._config, _end_without_shard)
        except LoadError as error:
            return self._give_up(str(error))
        except Exception as error:  # a full disk, a limit of memory, and whatever libraries raise
            logger.debug("The model cannot be loaded", exc_info=True)
            return self._give_up(
                f"cannot load the model: {type(error).__name__}: {one_line(error)}"
            )
        sys.setswitchinterval(SWITCH_SECONDS)
        # What is loaded now stays: garbage collections, which hold up a step, leave it out.
        gc.collect()
        gc.freeze()
        self._send(Ready(engine.model))
        try:
            self._serve(engine)
        except DeviceError as error:
            self._end_without_device(error)

    def _serve(self, engine: Engine) -> NoReturn:
        """Take messages and step. Raises DeviceError."""
        while True:
            for message in self._receive(engine.has_work, engine.is_compiling):
                match message:
                    case Submit():
                        engine.submit(message)
                    case Abort():
                        engine.abort(message.id)
            if engine.has_work or engine.is_compiling:
                outputs = engine.step()
                if _says_something(outputs):
                    self._send(outputs)
            if time.monotonic() >= self._sent_at + HEARTBEAT_SECONDS:
                self._send(Heartbeat())

    def _give_up(self, reason: str) -> int:
        """Tell the front why there is no engine. Returns an exit code."""
        self._send(Fatal(reason))
        self._socket.close()
        return 1

    def _end_without_device(self, error: DeviceError) -> NoReturn:
        """Say why, and end: the front starts the engine again, in a process with a new context.

        Nothing is torn down in order, for that may wait for the device.
        """
        logger.critical("%s; the engine process ends", error)
        self._send(Fatal(str(error)))
        self._socket.close()
        zmq.Context.instance().term()  # waits until the message is sent
        logging.shutdown()
        os._exit(1)

    def _set_priority(self) -> None:
        """Of this thread, and of all that it will start."""
        try:
            os.nice(self._config.nice)
        except OSError as error:
            raise LoadError(
                f"--engine-nice {self._config.nice}: {error.strerror}. Below 0 needs CAP_SYS_NICE"
            ) from error

    def _receive(self, has_work: bool, is_compiling: bool) -> list[Submit | Abort]:
        """All messages that are there; waits a while if there is nothing else to do."""
        idle_ms = int(1000 * HEARTBEAT_SECONDS)
        wait = 0 if has_work else COMPILE_POLL_MS if is_compiling else idle_ms
        messages = []
        while self._socket.poll(wait):
            messages.append(self._decoder.decode(self._socket.recv()))
            wait = 0
        return messages

    def _send(self, message: Outbound) -> None:
        self._socket.send(self._encoder.encode(message))
        self._sent_at = time.monotonic()


def _says_something(step: StepOutputs) -> bool:
    """Whether the front has to hear of a step; while it waits for a constraint there are many."""
    stats = step.stats
    return bool(step.outputs or stats.batch_tokens or stats.compile_seconds or stats.mask_seconds)


def main() -> int:
    """Entry point."""
    # Ctrl-C reaches the whole group; the front decides when the engine ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    address, config_json = sys.argv[1:]
    config = msgspec.json.decode(config_json, type=EngineConfig)
    configure_logging(
        json_output=config.json_output, level=config.log_level, fields=config.log_fields
    )
    threading.Thread(target=_end_with_front, name="front-watch", daemon=True).start()
    return EngineProcess(config, address).run()


def _end_without_shard() -> None:
    """Forwards would wait for it for ever. The front starts all of them again."""
    time.sleep(LAST_WORDS_SECONDS)
    os._exit(1)


def _end_with_front() -> None:
    while os.read(sys.stdin.fileno(), 4096):
        pass
    os._exit(0)


if __name__ == "__main__":
    # libgomp reads it when torch is loaded. Spinning for long at barriers stalls every step by
    # whole time slices when another process needs the core; see docs/architecture.md.
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    sys.exit(main())
