"""The figures on standard output, a JSON object a line, and in a file."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


def print_line(figures: dict[str, Any]) -> None:
    """Print one line at once: a run that breaks off has said what it measured."""
    sys.stdout.write(json.dumps(figures) + "\n")
    sys.stdout.flush()


@dataclass
class Report:
    """Prints lines and keeps them in a file, a JSON array."""

    file: Path | None = None
    lines: list[dict[str, Any]] = field(default_factory=list)

    def add(self, figures: dict[str, Any]) -> None:
        """Print one line, and have the file say all lines up to it."""
        self.lines.append(figures)
        print_line(figures)
        if self.file is not None:
            self.file.write_text(json.dumps(self.lines, indent=1) + "\n")
