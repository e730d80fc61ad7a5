"""The same constrained requests to our server and to others, in turn."""

from __future__ import annotations

import statistics
from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import Any

from benchmarks.load import Server
from benchmarks.report import print_line
from benchmarks.validity import validity_figures
from benchmarks.workload import Workload

OURS = "tokenloom"


@dataclass
class Peers:
    """Compares throughput. Each round has prompts of its own, so no prefix cache knows them."""

    servers: dict[str, Server]
    """By name: OURS, and its peers."""
    workload: Workload
    label: str
    """Of the workload's schemas."""
    num_failures: int = 0
    """Requests that failed, and outputs of ours that were not valid."""
    _rates: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    def warm_up(self) -> None:
        """Have each server compile the schemas, and whatever else it does for the first time."""
        workload = replace(self.workload, seed=f"{self.workload.seed}/warm-up")
        for server in self.servers.values():
            server.run(workload.requests(2, max(4, len(workload.schemas))), 2)

    def run(self, concurrency: int, num_requests: int, rounds: int) -> None:
        """Print a line for each server in each round, then one of the medians."""
        self._rates.clear()
        for number in range(rounds):
            for name in self.servers:
                self._run_server(name, concurrency, num_requests, number)
        print_line(self._summary(concurrency, rounds))

    def _run_server(self, name: str, concurrency: int, num_requests: int, number: int) -> None:
        workload = replace(self.workload, seed=f"{self.workload.seed}/{number}")
        level = self.servers[name].run(workload.requests(concurrency, num_requests), concurrency)
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
        self._rates[name].append(line["requests_per_second"])
        print_line(line)

    def _summary(self, concurrency: int, rounds: int) -> dict[str, Any]:
        rates = {name: round(statistics.median(rates), 2) for name, rates in self._rates.items()}
        ours = rates[OURS]
        return {
            "measured": "rates",
            "schemas": self.label,
            "concurrency": concurrency,
            "rounds": rounds,
            "requests_per_second": rates,
            "ratio": {name: round(ours / rate, 2) for name, rate in rates.items() if name != OURS},
        }
