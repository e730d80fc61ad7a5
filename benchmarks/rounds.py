"""One workload on some servers in turn, round by round, and the medians."""

from __future__ import annotations

import statistics
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.cpu_time import CpuTime
from benchmarks.load import Server
from benchmarks.measurement import Level
from benchmarks.report import Report
from benchmarks.validity import validity_figures
from benchmarks.workload import Workload

COMPARED = ("tokens_per_second", "requests_per_second", "ttft_p50_ms", "time_per_token_p50_ms")
"""Figures of which the medians have a ratio."""
OPEN_SECONDS = 20
"""Requests by the clock come for about so long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """So many clients, or so many requests a second."""

    concurrency: int | None = None
    rate: float | None = None
    num_requests: int | None = None
    """None: a number that suits."""

    def run(self, server: Server, workload: Workload) -> Level:
        """Put the load on a server until all its requests have ended."""
        if self.rate is not None:
            count = self.num_requests or max(8, round(OPEN_SECONDS * self.rate))
            return server.run_open(workload.requests(8, count), self.rate, workload.seed)
        assert self.concurrency is not None
        count = self.num_requests or max(8, 4 * self.concurrency)
        return server.run(workload.requests(self.concurrency, count), self.concurrency)


@dataclass
class Rounds:
    """Each round has prompts of its own, the same for all servers, so no prefix cache has them."""

    servers: dict[str, Server]
    """By label. The first is what the others are compared with."""
    name: str
    """Of the workload."""
    workload: Workload
    report: Report
    num_failures: int = 0
    """Requests that failed, and outputs that were not valid."""

    def warm_up(self) -> None:
        """Have each server do what it does for the first time."""
        workload = replace(self.workload, seed=f"{self.workload.seed}/warm-up")
        for server in self.servers.values():
            server.run(workload.requests(2, max(4, len(workload.schemas))), 2)

    def run(self, load: Load, rounds: int) -> None:
        """Report a line for each server in each round, then one of medians for each server."""
        lines: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for number in range(rounds):
            workload = replace(self.workload, seed=f"{self.workload.seed}/{number}")
            for label in self.servers:
                line = self._run_server(label, load, workload)
                self.report.add({**line, "round": number})
                lines[label].append(line)
        reference: dict[str, Any] = {}
        for label in self.servers:
            medians = _medians(lines[label])
            ratios = {name: _ratio(medians, reference, name) for name in COMPARED if reference}
            reference = reference or medians
            self.report.add({**medians, "measured": "medians", "rounds": rounds, "ratio": ratios})

    def _run_server(self, label: str, load: Load, workload: Workload) -> dict[str, Any]:
        server = self.servers[label]
        with CpuTime(server.url).spent() as cpu_seconds:
            level = load.run(server, workload)
        self.num_failures += len(level.errors)
        line = {"measured": "load", "workload": self.name, "server": label, **level.figures()}
        if workload.schemas:
            validity = validity_figures(level)
            self.num_failures += validity["whole"] - validity["valid"]
            line |= validity
        for part, seconds in cpu_seconds.items():
            line[f"{part}_cpu_ms_per_token"] = round(1000 * seconds / max(1, level.num_tokens), 3)
        return line


def _medians(lines: list[dict[str, Any]]) -> dict[str, Any]:
    """Of each figure that is a number in all rounds; what is not stays as it was first."""
    medians = dict(lines[0])
    for name, value in lines[0].items():
        values = [line[name] for line in lines]
        if isinstance(value, float) and None not in values:
            medians[name] = round(statistics.median(values), 3)
    return medians


def _ratio(line: dict[str, Any], reference: dict[str, Any], name: str) -> float | None:
    if not line[name] or not reference[name]:
        return None
    return round(float(line[name]) / float(reference[name]), 3)
