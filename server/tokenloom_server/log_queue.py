"""A queue between the code that logs and the thread that writes the lines."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from logging.handlers import QueueHandler, QueueListener
from queue import SimpleQueue

from tokenloom_engine.logs import add_request_id

MAX_RECORDS = 10_000
"""Records that wait at most. Later ones are dropped and counted."""

logger = logging.getLogger(__name__)


class LogQueue(QueueHandler):
    """Takes records without waiting, so that a blocked standard error delays no request."""

    def __init__(self) -> None:
        self.records: SimpleQueue[logging.LogRecord] = SimpleQueue()
        super().__init__(self.records)
        self.addFilter(add_request_id)
        self._num_dropped = 0

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        """Return the record itself: it is formatted in this process."""
        return record

    def enqueue(self, record: logging.LogRecord) -> None:
        """Append a record, or drop it if too many wait."""
        if self.records.qsize() >= MAX_RECORDS:
            self._num_dropped += 1
            return
        if self._num_dropped:
            count, self._num_dropped = self._num_dropped, 0
            logger.warning("%d log lines were dropped: standard error was blocked", count)
        self.records.put(record)


@contextmanager
def queued_logs() -> Iterator[None]:
    """Write the lines of all loggers in a thread. The last ones are written before the end."""
    root = logging.getLogger()
    handlers = root.handlers[:]
    queue = LogQueue()
    listener = QueueListener(queue.records, *handlers)
    root.handlers[:] = [queue]
    listener.start()
    try:
        yield
    finally:
        root.handlers[:] = handlers
        listener.stop()
