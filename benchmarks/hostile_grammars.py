"""Can a hostile grammar hold up the others? A crowd with and without such requests, in turn.

Each round sends, all at once, free requests, requests constrained by many schemas, and, in every
second round, hostile ones: grammars that are ambiguous, explode, never end or take long to
compile. What counts is the time between two tokens of the free requests: the last line has the
ratio of their 99th percentiles, with the hostile ones over without. Every whole constrained output
is validated against its schema.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from benchmarks.dialects import GenerateStream
from benchmarks.load import Server
from benchmarks.measurement import Level, percentile_ms
from benchmarks.own_server import own_server
from benchmarks.report import print_line
from benchmarks.schemas import one_of, record, text, whole
from benchmarks.validity import validity_figures
from benchmarks.workload import WORDS, Request

THINGS = WORDS.split()


@dataclass(frozen=True, slots=True, kw_only=True)
class HostileRequest(Request):
    """A request whose grammar is meant to do harm."""

    grammar: dict[str, Any] = field(default_factory=dict)


class HostileStream(GenerateStream):
    """The generate_stream route with any grammar."""

    def body(self, request: Request) -> dict[str, Any]:
        """The JSON body of a request."""
        body = super().body(request)
        if isinstance(request, HostileRequest):
            body["parameters"]["grammar"] = request.grammar
            del body["parameters"]["ignore_eos"]
        return body


def free_requests(count: int, max_tokens: int) -> Iterator[Request]:
    """Requests without a grammar, all of one length."""
    for i in range(count):
        words = " ".join(THINGS[(i + j) % len(THINGS)] for j in range(8))
        yield Request(prompt=f"{i}. A long story of {words}.", max_tokens=max_tokens)


def constrained_requests(count: int, num_schemas: int) -> Iterator[Request]:
    """Requests that take turns with so many schemas, no two of which are alike."""
    for i in range(count):
        schema = record(
            name=text(12),
            colour=one_of(*THINGS[: 2 + i % 7]),
            **{f"number_{i % num_schemas}": whole(0, 9 + i % num_schemas)},
        )
        yield Request(prompt=f"{i}. A thing as JSON:", max_tokens=96, schema=schema)


def hostile_requests(count: int, max_tokens: int) -> Iterator[Request]:
    """Requests that take turns with the kinds of harm, no grammar twice the same."""
    for i in range(count):
        grammar = hostile_grammar(i)
        yield HostileRequest(prompt="Say: aaaa", max_tokens=max_tokens, grammar=grammar)


def hostile_grammar(i: int) -> dict[str, Any]:
    """The i-th grammar that is meant to do harm."""
    nested = '{"type":"array","items":' * 3000 + "{}" + "}" * 3000
    choices = [
        {"type": "array", "items": {"$ref": "#/$defs/e"}, "minItems": 1 + j % 3} for j in range(200)
    ]
    kinds: list[tuple[str, Any]] = [
        ("regex", f"(a{{1,{990 + i}}}){{1,1000}}"),
        ("regex", f"(a+)+b{{{i + 1}}}"),
        ("regex", f"[ab]*a[ab]{{{18 + i}}}"),
        ("regex", f".{{0,{100000 + i}}}"),
        ("json", {"enum": [f"value {i} {j}" for j in range(20_000)]}),
        (
            "json",
            {"anyOf": [record(**{f"p{i}_{j}": text(9), "q": whole(0, 9)}) for j in range(2000)]},
        ),
        ("json", nested),
        ("grammar", f'start: "{"a" * i}" e\ne: e e | "a"'),
        ("json", {"type": "object", "properties": {f"c{i}": {"$ref": "#"}}, "required": [f"c{i}"]}),
        (
            "json",
            {"$defs": {"e": {"anyOf": choices}}, **record(**{f"a{i}": {"$ref": "#/$defs/e"}})},
        ),
    ]
    type_, value = kinds[i % len(kinds)]
    return {"type": type_, "value": value if isinstance(value, str) else json.dumps(value)}


async def run_round(server: Server, groups: dict[str, list[Request]]) -> dict[str, Level]:
    """Send all requests of all groups at once."""
    levels = await asyncio.gather(
        *(server.collect(requests, len(requests)) for requests in groups.values())
    )
    return dict(zip(groups, levels, strict=True))


def figures(levels: dict[str, Level], with_hostile: bool) -> dict[str, Any]:
    """What came of one round."""
    gaps = [gap for m in levels["free"].measurements for gap in m.gaps]
    hostile = levels.get("hostile", Level(0))
    return {
        "hostile": with_hostile,
        "free_gap_p50_ms": percentile_ms(gaps, 0.5),
        "free_gap_p99_ms": percentile_ms(gaps, 0.99),
        "free_gap_max_ms": percentile_ms(gaps, 1.0),
        "free_errors": levels["free"].errors[:2],
        "constrained": validity_figures(levels["constrained"]),
        "constrained_errors": levels["constrained"].errors[:2],
        "hostile_served": len(hostile.measurements),
        "hostile_ended": Counter(error[:60] for error in hostile.errors).most_common(),
    }


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", help="a running server; without it, one is started for the run")
    parser.add_argument("--server-args", default="--max-concurrent-requests 512")
    parser.add_argument("--free", type=int, default=64)
    parser.add_argument("--constrained", type=int, default=172)
    parser.add_argument("--hostile", type=int, default=20)
    parser.add_argument("--schemas", type=int, default=64)
    parser.add_argument("--max-tokens", type=int, default=48, help="of free and hostile requests")
    parser.add_argument("--rounds", type=int, default=3, help="pairs of rounds")
    options = parser.parse_args()
    p99: dict[bool, list[float]] = {False: [], True: []}
    is_right = True
    with own_server(options.url, options.server_args) as url:
        server = Server(url, HostileStream())
        for index in range(2 * options.rounds + 1):
            with_hostile = index % 2 == 0 and index > 0  # the first one warms up
            groups = {
                "free": list(free_requests(options.free, options.max_tokens)),
                "constrained": list(constrained_requests(options.constrained, options.schemas)),
            }
            if with_hostile:
                groups["hostile"] = list(hostile_requests(options.hostile, options.max_tokens))
            line = figures(asyncio.run(run_round(server, groups)), with_hostile)
            print_line(line)
            is_right &= not (line["free_errors"] or line["constrained_errors"])
            is_right &= line["constrained"]["valid"] == line["constrained"]["whole"]
            if index:
                p99[with_hostile].append(line["free_gap_p99_ms"])
    without, with_ = statistics.median(p99[False]), statistics.median(p99[True])
    print_line(
        {"free_gap_p99_ms": {"without": without, "with": with_}, "ratio": round(with_ / without, 3)}
    )
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
