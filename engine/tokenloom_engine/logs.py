"""How both processes write their logs: to stderr, as lines or as JSON."""

from __future__ import annotations

import logging
import sys

from pythonjsonlogger.json import JsonFormatter

LINE = "{asctime} {levelname:<7} {name}: {message}"
LEVELS = {
    "trace": logging.DEBUG,
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warn": logging.WARNING,
    "error": logging.ERROR,
}
JSON_NAMES = {"asctime": "timestamp", "levelname": "level", "name": "target"}


def configure_logging(*, json_output: bool, level: str = "info") -> None:
    """Send everything from `level` up to stderr, each record one line; warnings too."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_json_formatter() if json_output else logging.Formatter(LINE, style="{"))
    logging.basicConfig(level=LEVELS[level], handlers=[handler], force=True)
    logging.captureWarnings(True)


def _json_formatter() -> JsonFormatter:
    return JsonFormatter("{asctime}{levelname}{name}{message}", style="{", rename_fields=JSON_NAMES)
