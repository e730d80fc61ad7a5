"""The same requests to our server and to others, in turn."""

from __future__ import annotations

import statistics
from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import Any

from benchmarks.load import Server
from benchmarks.report import print_line
from benchmarks.server_processes import paused
from benchmarks.validity import validity_figures
from benchmarks.workload import Workload

OURS = "tokenloom"
FIGURES = ("requests_per_second", "tokens_per_second", "ttft_p50_ms", "time_per_token_p50_ms")


@dataclass
class Peers:
    """Compares throughput. Each round has prompts of its own, so no prefix cache knows them.

    While one server is measured, those of the others that this process started stand still.
    """

    servers: dict[str, Server]
    """By name: OURS, and its peers."""
    workload: Workload
    label: str
    """Of the workload's schemas; or free."""
    num_failures: int = 0
    """Requests that failed, and outputs of ours that were not valid."""
    _lines: dict[str, list[dict[str, Any]]] = field(default_factory=lambda: defaultdict(list))

    def warm_up(self) -> None:
        """Have each server compile the schemas, and whatever else it does for the first time."""
        workload = replace(self.workload, seed=f"{self.workload.seed}/warm-up")
        for server in self.servers.values():
            server.run(workload.requests(2, max(4, len(workload.schemas))), 2)

    def run(self, concurrency: int, num_requests: int, rounds: int) -> None:
        """Print a line for each server in each round, then one of the medians."""
        self._lines.clear()
        for number in range(rounds):
            for name in self.servers:
                self._run_server(name, concurrency, num_requests, number)
        print_line(self._summary(concurrency, rounds))

    def _run_server(self, name: str, concurrency: int, num_requests: int, number: int) -> None:
        workload = replace(self.workload, seed=f"{self.workload.seed}/{number}")
        others = [server.url for other, server in self.servers.items() if other != name]
        requests = workload.requests(concurrency, num_requests)
        with paused(others):
            level = self.servers[name].run(requests, concurrency)
        validity = validity_figures(level)
        self.num_failures += len(level.errors)
        if name == OURS:
            self.num_failures += validity["whole"] - validity["valid"]
        line = {
            "measured": "throughput",
            "server": name,
            "schemas": self.label,
            "round": number,
            **level.figures(),
            **validity,
        }
        self._lines[name].append(line)
        print_line(line)

    def _summary(self, concurrency: int, rounds: int) -> dict[str, Any]:
        """The median of each figure, and how many times a peer's ours is."""
        medians = {
            figure: {
                name: round(statistics.median(line[figure] for line in lines), 2)
                for name, lines in self._lines.items()
            }
            for figure in FIGURES
        }
        return {
            "measured": "rates",
            "schemas": self.label,
            "concurrency": concurrency,
            "rounds": rounds,
            **medians,
            "ratio": _ratios(medians["requests_per_second"]),
            "ttft_ratio": _ratios(medians["ttft_p50_ms"]),
            "time_per_token_ratio": _ratios(medians["time_per_token_p50_ms"]),
        }


def _ratios(values: dict[str, float]) -> dict[str, float]:
    ours = values[OURS]
    return {name: round(ours / value, 2) for name, value in values.items() if name != OURS}
