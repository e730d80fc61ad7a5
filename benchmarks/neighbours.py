"""Do streams stall when other processes want the cores? The same load, idle and beside a neighbour.

A neighbour is a process that computes without a pause. Of each run count the times between two
events of a stream while all of them decode: each is a step, and what delayed its tokens.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from benchmarks.dialects import GenerateStream
from benchmarks.load import Server
from benchmarks.machine import machine_figures
from benchmarks.measurement import percentile_ms
from benchmarks.own_server import own_server
from benchmarks.report import Report
from benchmarks.together import gaps_together
from benchmarks.workload import Workload

LONG_SECONDS = 0.05
"""A gap that a reader may notice."""
COMPUTE = "while True: pass"


@contextmanager
def neighbours(count: int) -> Iterator[None]:
    """So many processes, each of which takes what it can get of a core."""
    processes = [subprocess.Popen([sys.executable, "-c", COMPUTE]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def main() -> int:
    """Print a line for each number of neighbours in each round, then one for all its rounds."""
    options = _arguments()
    report = Report(options.output)
    report.add({"measured": "machine", **machine_figures()})
    gaps: dict[int, list[float]] = {count: [] for count in options.neighbours}
    num_failures = 0
    # Without drafts, so that a step has one event.
    with own_server(options.url, f"--speculate 0 {options.server_args}") as url:
        server = Server(url, GenerateStream())
        workload = Workload(prompt_words=(20,), max_tokens=options.max_tokens, seed="warm-up")
        server.run(workload.requests(options.rows, options.rows), options.rows)
        for number in range(options.rounds):
            for count in options.neighbours:
                requests = replace(workload, seed=f"{number}/{count}").requests(
                    options.rows, options.rows
                )
                with neighbours(count):
                    level = server.run(requests, options.rows)
                num_failures += len(level.errors)
                found = gaps_together(level)
                gaps[count] += found
                report.add({"measured": "round", **_figures(count, options.rows, found)})
    for count, found in gaps.items():
        line = _figures(count, options.rows, found)
        report.add({"measured": "neighbours", "rounds": options.rounds, **line})
    return 1 if num_failures else 0


def _figures(count: int, rows: int, gaps: list[float]) -> dict[str, float | None]:
    return {
        "neighbours": count,
        "rows": rows,
        "gaps": len(gaps),
        "gap_p50_ms": percentile_ms(gaps, 0.5),
        "gap_p99_ms": percentile_ms(gaps, 0.99),
        "gap_max_ms": percentile_ms(gaps, 1.0),
        "over_50_ms": sum(gap > LONG_SECONDS for gap in gaps),
    }


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", help="a running server; without it, one is started for the run")
    parser.add_argument("--server-args", default="", help='flags of the started server, "--a b"')
    parser.add_argument("--rows", type=int, default=8, help="streams")
    parser.add_argument("--neighbours", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--max-tokens", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--output", type=Path, help="keep the lines in this file, as a JSON array")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
