"""How both processes write their logs: to stderr, as lines or as JSON."""

from __future__ import annotations

import logging
import sys

from pythonjsonlogger.json import JsonFormatter

LINE = "{asctime} {levelname:<7} {name}: {message}"
JSON_NAMES = {"asctime": "timestamp", "levelname": "level", "name": "target"}


def configure_logging(*, json_output: bool) -> None:
    """Send everything from INFO up to stderr, each record one line."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_json_formatter() if json_output else logging.Formatter(LINE, style="{"))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)


def _json_formatter() -> JsonFormatter:
    return JsonFormatter("{asctime}{levelname}{name}{message}", style="{", rename_fields=JSON_NAMES)
