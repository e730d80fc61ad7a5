"""A factory that keeps its processors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque

import msgspec

from tokenloom_engine.logits_processors.base import Args, LogitsProcessor, ProcessorContext

MAX_IDLE = 64
"""Processors that a PoolingFactory keeps."""


class PoolingFactory(ABC):
    """A factory that resets and keeps what comes back. Its author writes `create` alone."""

    def __init__(self, context: ProcessorContext) -> None:
        self.context = context
        self._idle: deque[tuple[bytes, LogitsProcessor]] = deque(maxlen=MAX_IDLE)

    @abstractmethod
    def create(self, args: Args) -> LogitsProcessor:
        """A new processor. Raises ValueError with the reason if it cannot take these arguments."""

    def validate(self, args: Args, /) -> None:
        """See LogitsProcessorFactory. What it makes to find out is kept for `get_processor`."""
        self.return_processor(self.get_processor(args), args)

    def get_processor(self, args: Args, /) -> LogitsProcessor:
        """See LogitsProcessorFactory."""
        wanted = _key(args)
        for at, (key, processor) in enumerate(self._idle):
            if key == wanted:
                del self._idle[at]
                return processor
        return self.create(args)

    def return_processor(self, processor: LogitsProcessor, args: Args, /) -> None:
        """See LogitsProcessorFactory."""
        processor.reset()
        self._idle.append((_key(args), processor))


def _key(args: Args) -> bytes:
    return msgspec.msgpack.encode(args, order="deterministic")
