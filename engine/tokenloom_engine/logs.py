"""Logging, the same in both processes: readable lines, or JSON."""

from __future__ import annotations

import logging
import os
import sys

from pythonjsonlogger.json import JsonFormatter


def configure_logging(*, json_output: bool) -> None:
    """Send the log to standard error, one line an entry, from level LOG_LEVEL (info) up."""
    handler = logging.StreamHandler(sys.stderr)
    if json_output:
        fields = {"asctime": "timestamp", "levelname": "level", "name": "target"}
        handler.setFormatter(
            JsonFormatter("%(asctime)s %(levelname)s %(name)s %(message)s", rename_fields=fields)
        )
    else:
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)-7s %(message)s"))
    level = os.environ.get("LOG_LEVEL", "info").upper()
    logging.basicConfig(level=level, handlers=[handler], force=True)
    logging.getLogger("httpx").setLevel(logging.WARNING)
