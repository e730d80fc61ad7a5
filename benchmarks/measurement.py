"""What was measured, and the figures made of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Measurement:
    """One request as its client saw it."""

    first_token_seconds: float = 0.0
    last_token_seconds: float = 0.0
    gaps: list[float] = field(default_factory=list)
    """Seconds between one event of the stream and the next."""
    num_tokens: int = 0

    @property
    def seconds_per_token(self) -> float:
        """Mean time of each token after the first."""
        decoding = self.last_token_seconds - self.first_token_seconds
        return decoding / max(1, self.num_tokens - 1)

    def add_token(self, elapsed: float) -> None:
        """Count a token that arrived `elapsed` seconds after the request was sent."""
        if self.num_tokens == 0:
            self.first_token_seconds = elapsed
        else:
            self.gaps.append(elapsed - self.last_token_seconds)
        self.last_token_seconds = elapsed
        self.num_tokens += 1


@dataclass(slots=True)
class Level:
    """What was measured at one concurrency."""

    measurements: list[Measurement] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def figures(self, wall_seconds: float) -> dict[str, Any]:
        """Rates and percentiles, by their names in the output."""
        measurements = self.measurements
        num_tokens = sum(m.num_tokens for m in measurements)
        first = [m.first_token_seconds for m in measurements]
        per_token = [m.seconds_per_token for m in measurements]
        gaps = [gap for m in measurements for gap in m.gaps]
        return {
            "requests": len(measurements),
            "errors": len(self.errors),
            "first_error": next(iter(self.errors), None),
            "output_tokens": num_tokens,
            "wall_seconds": round(wall_seconds, 2),
            "tokens_per_second": round(num_tokens / wall_seconds, 1),
            "requests_per_second": round(len(measurements) / wall_seconds, 2),
            "ttft_p50_ms": percentile_ms(first, 0.5),
            "ttft_p99_ms": percentile_ms(first, 0.99),
            "time_per_token_p50_ms": percentile_ms(per_token, 0.5),
            "time_per_token_p99_ms": percentile_ms(per_token, 0.99),
            "gap_p99_ms": percentile_ms(gaps, 0.99),
        }


def percentile_ms(seconds: list[float], fraction: float) -> float | None:
    """The nearest-rank percentile in milliseconds; None of nothing."""
    if not seconds:
        return None
    rank = min(len(seconds) - 1, int(fraction * len(seconds)))
    return round(1000 * sorted(seconds)[rank], 1)
