"""How both processes write their logs: to stderr, as lines or as JSON."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from functools import partial

from pythonjsonlogger.core import RESERVED_ATTRS, merge_record_extra
from pythonjsonlogger.json import JsonFormatter

from tokenloom_engine.request_id import request_id

LINE = "{asctime} {levelname:<7} {name}: {message}"
LEVELS = {
    "trace": logging.DEBUG,
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warn": logging.WARNING,
    "error": logging.ERROR,
}
RESERVED = frozenset(RESERVED_ATTRS)
"""Attributes of a record that are not its `extra`."""
JSON_NAMES = {"asctime": "timestamp", "levelname": "level", "name": "target"}


def configure_logging(
    *, json_output: bool, level: str = "info", fields: Mapping[str, object] | None = None
) -> None:
    """Send everything from `level` up to stderr, each record one line; warnings too.

    `fields`: as a record's `extra`, in all of them.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_json_formatter() if json_output else LineFormatter(LINE, style="{"))
    handler.addFilter(add_request_id)
    if fields:
        handler.addFilter(partial(_add_fields, fields))
    logging.basicConfig(level=LEVELS[level], handlers=[handler], force=True)
    logging.captureWarnings(True)


class LineFormatter(logging.Formatter):
    """Writes the fields in a record's `extra` as `name=value` at the end of its line."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        """Return the line without a traceback."""
        fields = merge_record_extra(record, {}, reserved=RESERVED)
        line = super().formatMessage(record)
        return " ".join([line, *(f"{name}={value}" for name, value in fields.items())])


def add_request_id(record: logging.LogRecord) -> bool:
    """Give a record the request id of its task or thread. A filter that keeps all records."""
    id = request_id.get()
    if id is not None:
        record.request_id = id
    return True


def _add_fields(fields: Mapping[str, object], record: logging.LogRecord) -> bool:
    """Give a record these fields. A filter that keeps all records."""
    record.__dict__.update(fields)
    return True


def tame_libraries(*, with_progress: bool) -> None:
    """Let what the libraries say go through our log, and draw bars only for a person."""
    from huggingface_hub.utils import disable_progress_bars  # type: ignore[attr-defined]
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_default_handler()
    transformers_logging.enable_propagation()
    if not with_progress:
        transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
        disable_progress_bars()


def _json_formatter() -> JsonFormatter:
    return JsonFormatter("{asctime}{levelname}{name}{message}", style="{", rename_fields=JSON_NAMES)
