"""The front's end of the border: submits, aborts, and deals out what the engine sends."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import cast

import anyio
import msgspec
import zmq
import zmq.asyncio

from tokenloom_engine.messages import (
    Abort,
    EngineStats,
    Fatal,
    Heartbeat,
    Inbound,
    ModelInfo,
    Outbound,
    Ready,
    StepOutputs,
)
from tokenloom_engine.request_id import working_for
from tokenloom_router.engine_metrics import EngineMetrics
from tokenloom_router.entry import Entry
from tokenloom_router.errors import GenerationError, UnavailableError
from tokenloom_router.request import Timings, ValidRequest

SEQUENCE_TOKENS = 128
"""Tokens that a sequence is expected to generate: `max_new_tokens` is often the whole context."""

logger = logging.getLogger(__name__)


class EngineClient:
    """Outlives the engine process: ids never repeat, and a new process finds no entries.

    Sending never waits, so that leaving a request cannot be held up or cancelled half-way.
    """

    def __init__(self, metrics: EngineMetrics) -> None:
        self._metrics = metrics
        self._ids = count()
        self._entries: dict[int, Entry] = {}
        self._socket: zmq.asyncio.Socket | None = None
        self._is_ready = False
        self.num_received = 0
        """Messages so far. An engine that makes progress sends some all the time."""
        self.received_at = 0.0
        """`time.monotonic()` of the last one."""
        self.model: ModelInfo | None = None
        """As the engine described it when it was ready last."""
        self.stats = EngineStats()
        """Statistics of the last step; all 0 without a running sequence or an engine."""
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(Outbound)
        metrics.watch(self)

    @property
    def is_ready(self) -> bool:
        """Whether the engine takes requests."""
        return self._is_ready

    @property
    def running_max_tokens(self) -> int:
        """Tokens that the running sequences may come to hold."""
        entries = self._entries.values()
        return sum(entry.max_tokens for entry in entries if entry.output_at)

    @property
    def waiting_tokens(self) -> int:
        """Tokens that the engine has to compute for what it was sent, as far as can be told.

        These are the prompts without a first output, and SEQUENCE_TOKENS for each sequence.
        """
        entries = self._entries.values()
        prefill_tokens = sum(entry.prefill_tokens for entry in entries if not entry.output_at)
        return prefill_tokens + SEQUENCE_TOKENS * len(entries)

    @contextmanager
    def connected(self, address: str) -> Iterator[None]:
        """Listen on `address` for one engine process. Raise zmq.ZMQError if that fails."""
        context = zmq.asyncio.Context()
        try:
            socket = context.socket(zmq.PAIR)
            socket.set_hwm(0)
            socket.bind(address)
            self._socket = socket
            yield
        finally:
            self.lose("the server is shutting down")
            self._socket = None
            context.destroy(linger=0)

    @contextmanager
    def open(
        self,
        request: ValidRequest,
        timings: Timings,
        on_end: Callable[[], None],
        prefill_tokens: int = 0,
    ) -> Iterator[Entry]:
        """Submit a request. Leaving the block aborts its sequence unless that has ended.

        `on_end` is called once if the sequence ends inside the block, before its last output can
        be read. `prefill_tokens`: as in Entry. Raise UnavailableError if the engine is not ready.
        """
        entry = Entry(next(self._ids), request, timings, on_end, prefill_tokens)
        try:
            self._submit(entry)
            yield entry
        finally:
            entry.close()
            if self._entries.pop(entry.id, None) is not None:
                self._abort(entry.id)
                self._note_idle()

    async def receive(self, on_ready: Callable[[ModelInfo], None]) -> str:
        """Deal out the engine's messages until it says that it cannot go on; return why."""
        socket = self._socket
        assert socket is not None, "receive() runs inside connected()"
        while True:
            data = await socket.recv()
            self.num_received += 1
            self.received_at = time.monotonic()
            try:
                message = self._decoder.decode(data)
            except msgspec.DecodeError:
                logger.exception("The engine process sent a message that cannot be read")
                return "engine process sent a message that cannot be read"
            match message:
                case StepOutputs():
                    self._deliver(message)
                case Ready(model):
                    self._is_ready = True
                    self.model = model
                    on_ready(model)
                case Heartbeat():
                    pass
                case Fatal(reason):
                    return reason

    def refuse(self) -> None:
        """Take no more requests: the engine is about to be declared lost."""
        self._is_ready = False

    def lose(self, reason: str) -> None:
        """End every open stream with a GenerationError: there is no engine any more."""
        self._is_ready = False
        self.stats = EngineStats()
        for entry in self._entries.values():
            entry.fail(GenerationError(reason))
            entry.on_end()
        self._entries.clear()

    def _submit(self, entry: Entry) -> None:
        if not self._is_ready or not self._send(entry.submit_message()):
            raise UnavailableError("The engine is not ready")
        self._entries[entry.id] = entry

    def _abort(self, id: int) -> None:
        # an engine that cannot be reached has nothing to abort
        self._send(Abort(id))

    def _send(self, message: Inbound) -> bool:
        """Send without waiting. Return False if the engine cannot be reached."""
        if self._socket is None:
            return False
        sent = self._socket.send(self._encoder.encode(message), zmq.NOBLOCK)
        # with NOBLOCK it is done by now, one way or the other
        return cast("asyncio.Future[object]", sent).exception() is None

    def _deliver(self, message: StepOutputs) -> None:
        """Hand each output of a step to its entry."""
        now = self.received_at
        last_output_at: Counter[float] = Counter()
        for output in message.outputs:
            entry = self._entries.get(output.id)
            if entry is None:  # its client left while the step ran
                continue
            if output.tokens and entry.output_at:
                last_output_at[entry.output_at] += 1
            try:
                entry.put(output, now)
            except anyio.WouldBlock:
                self._break_off(entry)
            if output.finish or output.error is not None or output.refusal is not None:
                self._end(entry)
        # Sequences that run together got their last tokens together: few observations a step.
        for then, num_sequences in last_output_at.items():
            self._metrics.waited(now - then, num_sequences)
        self.stats = message.stats
        self._metrics.step(message.stats)
        self._note_idle()

    def _end(self, entry: Entry) -> None:
        if self._entries.pop(entry.id, None) is not None:
            entry.on_end()

    def _note_idle(self) -> None:
        if not self._entries:
            self.stats = EngineStats()

    def _break_off(self, entry: Entry) -> None:
        """End a sequence that goes on past its `max_new_tokens`."""
        with working_for(entry.request_id):
            logger.error("The engine generated more outputs for a sequence than it may have tokens")
        self._end(entry)
        self._abort(entry.id)
        entry.fail(GenerationError("the engine exceeded max_new_tokens"))
