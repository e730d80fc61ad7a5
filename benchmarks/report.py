"""The figures on standard output, a JSON object a line."""

from __future__ import annotations

import json
import sys
from typing import Any


def print_line(figures: dict[str, Any]) -> None:
    """Print one line at once: a run that breaks off has said what it measured."""
    sys.stdout.write(json.dumps(figures) + "\n")
    sys.stdout.flush()
