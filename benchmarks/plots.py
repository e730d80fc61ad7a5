"""Pictures of what `serving` measured."""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path
from typing import Any

MISSING = "--plot needs matplotlib: pip install 'tokenloom[benchmarks]', or leave --plot out"
PANELS = {
    "tokens_per_second": "output tokens a second",
    "ttft_p50_ms": "time to first token, median (ms)",
    "time_per_token_p50_ms": "time per token, median (ms)",
    "gap_p99_ms": "gap between tokens, 99th percentile (ms)",
}


def can_plot() -> bool:
    """Whether matplotlib is installed."""
    return importlib.util.find_spec("matplotlib") is not None


def plot(lines: list[dict[str, Any]], file: Path) -> None:
    """Draw the lines of medians over clients and over rates, a curve a workload and server."""
    pyplot: Any = importlib.import_module("matplotlib.pyplot")
    medians = [line for line in lines if line["measured"] == "medians"]
    axes_names = {"concurrency": "clients", "rate": "requests a second"}
    rows = [name for name in axes_names if any(line.get(name) for line in medians)]
    size = (4 * len(PANELS), 3.2 * len(rows))
    figure, grid = pyplot.subplots(len(rows), len(PANELS), squeeze=False, figsize=size)
    for row, axes in zip(rows, grid, strict=True):
        curves = sorted({(m["workload"], m["server"]) for m in medians if m.get(row)})
        for axis, (figure_name, title) in zip(axes, PANELS.items(), strict=True):
            for curve in curves:
                places = [
                    m for m in medians if m.get(row) and curve == (m["workload"], m["server"])
                ]
                places.sort(key=lambda m: m[row])
                label = " ".join(part for part in curve if part)
                x, y = [m[row] for m in places], [m[figure_name] for m in places]
                axis.plot(x, y, marker="o", label=label)
            axis.set(title=title, xlabel=axes_names[row], ylim=(0, None))
        axes[0].legend()
    figure.tight_layout()
    figure.savefig(file)
