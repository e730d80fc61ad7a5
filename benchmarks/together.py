"""The part of a level in which all its requests stream at once."""

from __future__ import annotations

from itertools import accumulate

from benchmarks.measurement import Level


def gaps_together(level: Level) -> list[float]:
    """Seconds between two events of a stream, from the last one's first event to the first one's
    last: in this time no prompt is computed, and the batch is always the same."""
    streams = level.measurements
    begin = max(m.started_at + m.first_token_seconds for m in streams)
    end = min(m.started_at + m.last_token_seconds for m in streams)
    gaps = []
    for stream in streams:
        at = stream.started_at + stream.first_token_seconds
        for gap, passed in zip(stream.gaps, accumulate(stream.gaps), strict=True):
            if at + passed - gap >= begin and at + passed <= end:
                gaps.append(gap)
    return gaps
