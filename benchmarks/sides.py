"""The same requests three ways: free, constrained, and constrained with forced tokens.

All three have the same prompts. A first run, which is not counted, brings the prompts into the
prefix cache, so that what is compared is decoding, and has the grammars compiled. Then the sides
take turns, round by round, so that a machine that becomes slower becomes so for all of them.

- *constrained* computes every token by a forward of its own (`forced_tokens: false`).
- *free* generates, for each prompt, exactly as many tokens as *constrained* just did. Both
  run the same number of steps with the same number of sequences in them; what a constrained step
  takes longer is what its constraints cost.
- *forced* computes the tokens that the constraint forces together, as the default is.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from benchmarks.load import Server
from benchmarks.measurement import Level
from benchmarks.report import print_line
from benchmarks.server_metrics import read_metrics, spent
from benchmarks.validity import validity_figures
from benchmarks.workload import Request

STEPS = "tgi_batch_inference_count"
MASK_SECONDS = "tgi_batch_mask_duration_sum"
FORCED_TOKENS = "tgi_forced_tokens"


@dataclass
class Sides:
    """Compares the sides at one concurrency, on our own server."""

    server: Server
    concurrency: int
    requests: Sequence[Request]
    """With a schema each, and no prompt twice."""
    label: str
    """Of the schemas."""
    num_failures: int = 0
    """Requests that failed, and outputs that were not valid."""
    _lines: dict[str, list[dict[str, Any]]] = field(default_factory=lambda: defaultdict(list))

    def run(self, rounds: int) -> None:
        """Print a line for each side of each round, then one of the medians."""
        stepwise = [replace(request, forced_tokens=False) for request in self.requests]
        self.server.run(stepwise, self.concurrency)
        for number in range(rounds):
            constrained = self._run_side("constrained", number, stepwise)
            self._run_side("free", number, freed(stepwise, constrained))
            self._run_side("forced", number, self.requests)
        print_line(self._summary())

    def _run_side(self, side: str, number: int, requests: Sequence[Request]) -> Level:
        before = read_metrics(self.server.url)
        level = self.server.run(requests, self.concurrency)
        used = spent(before, read_metrics(self.server.url))
        line = {
            "measured": side,
            "schemas": self.label,
            "round": number,
            **level.figures(),
            "forwards": round(used[STEPS]),
            "forced_tokens": round(used[FORCED_TOKENS]),
            "mask_ms_per_forward": round(1000 * used[MASK_SECONDS] / max(1, used[STEPS]), 3),
        }
        self.num_failures += len(level.errors)
        if side != "free":
            line |= validity_figures(level)
            self.num_failures += line["whole"] - line["valid"]
        self._lines[side].append(line)
        print_line(line)
        return level

    def _summary(self) -> dict[str, Any]:
        constrained, free, forced = (
            self._medians(side) for side in ("constrained", "free", "forced")
        )
        return {
            "measured": "sides",
            "schemas": self.label,
            "concurrency": self.concurrency,
            "rounds": len(self._lines["free"]),
            "constrained": constrained,
            "free": free,
            "forced": forced,
            "mask_percent": self._mask_percent(),
            "step_overhead_percent": self._overhead("gap_p50_ms"),
            "overhead_percent": self._overhead("wall_seconds"),
            "forced_forwards_ratio": round(forced["forwards"] / constrained["forwards"], 3),
            "forced_seconds_ratio": round(
                forced["latency_p50_ms"] / constrained["latency_p50_ms"], 3
            ),
        }

    def _medians(self, side: str) -> dict[str, float]:
        names = (
            "tokens_per_second",
            "requests_per_second",
            "time_per_token_p50_ms",
            "gap_p50_ms",
            "latency_p50_ms",
            "forwards",
            "mask_ms_per_forward",
        )
        return {
            name: round(statistics.median(line[name] for line in self._lines[side]), 3)
            for name in names
        }

    def _mask_percent(self) -> dict[str, float]:
        """The share of a constrained step in which masks are filled: median and bounds."""
        lines = self._lines["constrained"]
        return _bounds([100 * line["mask_ms_per_forward"] / line["gap_p50_ms"] for line in lines])

    def _overhead(self, name: str) -> dict[str, float]:
        """The share of a constrained figure that the free one does not have: median and bounds."""
        pairs = zip(self._lines["constrained"], self._lines["free"], strict=True)
        return _bounds([100 * (1 - free[name] / constrained[name]) for constrained, free in pairs])


def freed(requests: Sequence[Request], constrained: Level) -> list[Request]:
    """The requests without their schemas, as long as their constrained outputs were."""
    lengths = {m.request.prompt: m.num_tokens for m in constrained.measurements}
    return [
        replace(request, schema=None, max_tokens=lengths[request.prompt])
        for request in requests
        if request.prompt in lengths
    ]


def _bounds(shares: list[float]) -> dict[str, float]:
    return {
        "median": round(statistics.median(shares), 2),
        "least": round(min(shares), 2),
        "most": round(max(shares), 2),
    }
