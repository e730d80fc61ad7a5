"""Can a hostile grammar hold up the others? A crowd with and without such requests, in turn.

Each round sends, all at once, free requests and requests constrained by many schemas. To these the
rounds add, in turn, nothing, hostile requests (grammars that are ambiguous, explode, never end or
take long to compile), or as many ordinary ones of the same length. What counts is the time between
two tokens of the free requests: the last line has the ratios of their 99th percentiles with the
hostile ones to those of the other rounds. Every whole constrained output is validated against its
schema.
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
ADDED = ("nothing", "hostile", "ordinary")
"""What a round adds to the crowd. Hostile requests that are served do ordinary work as well: they
have prompts, and rows in the batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GrammarRequest(Request):
    """A request with any grammar."""

    grammar: dict[str, Any] = field(default_factory=dict)


class GrammarStream(GenerateStream):
    """The generate_stream route with any grammar."""

    def body(self, request: Request) -> dict[str, Any]:
        """The JSON body of a request."""
        body = super().body(request)
        if isinstance(request, GrammarRequest):
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
        yield GrammarRequest(prompt="Say: aaaa", max_tokens=max_tokens, grammar=grammar)


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


def ordinary_requests(count: int, max_tokens: int) -> Iterator[Request]:
    """As many with the same prompt and length, whose grammar does no harm."""
    for i in range(count):
        grammar = {"type": "regex", "value": f"[ab]{{{max_tokens + i},}}"}
        yield GrammarRequest(prompt="Say: aaaa", max_tokens=max_tokens, grammar=grammar)


async def run_round(server: Server, groups: dict[str, list[Request]]) -> dict[str, Level]:
    """Send all requests of all groups at once."""
    levels = await asyncio.gather(
        *(server.collect(requests, len(requests)) for requests in groups.values())
    )
    return dict(zip(groups, levels, strict=True))


def figures(levels: dict[str, Level], added: str) -> dict[str, Any]:
    """What came of one round."""
    gaps = [gap for m in levels["free"].measurements for gap in m.gaps]
    others = levels.get("added", Level(0))
    return {
        "added": added,
        "free_gap_p50_ms": percentile_ms(gaps, 0.5),
        "free_gap_p99_ms": percentile_ms(gaps, 0.99),
        "free_gap_max_ms": percentile_ms(gaps, 1.0),
        "free_errors": levels["free"].errors[:2],
        "constrained": validity_figures(levels["constrained"]),
        "constrained_errors": levels["constrained"].errors[:2],
        "added_served": len(others.measurements),
        "added_tokens": others.num_tokens,
        "added_ended": Counter(error[:160] for error in others.errors).most_common(),
    }


def groups_of(options: argparse.Namespace, added: str) -> dict[str, list[Request]]:
    """The requests of one round."""
    groups: dict[str, list[Request]] = {
        "free": list(free_requests(options.free, options.max_tokens)),
        "constrained": list(constrained_requests(options.constrained, options.schemas)),
    }
    if added == "hostile":
        groups["added"] = list(hostile_requests(options.hostile, options.max_tokens))
    elif added == "ordinary":
        groups["added"] = list(ordinary_requests(options.hostile, options.max_tokens))
    return groups


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", help="a running server; without it, one is started for the run")
    parser.add_argument("--server-args", default="--max-concurrent-requests 512")
    parser.add_argument("--free", type=int, default=64)
    parser.add_argument("--constrained", type=int, default=172)
    parser.add_argument("--hostile", type=int, default=20)
    parser.add_argument("--schemas", type=int, default=64)
    parser.add_argument("--max-tokens", type=int, default=48, help="of free and added requests")
    parser.add_argument("--rounds", type=int, default=3, help="of each kind")
    options = parser.parse_args()
    p99: dict[str, list[float]] = {added: [] for added in ADDED}
    is_right = True
    with own_server(options.url, options.server_args) as url:
        server = Server(url, GrammarStream())
        for index, added in enumerate(["nothing", *ADDED * options.rounds]):
            line = figures(asyncio.run(run_round(server, groups_of(options, added))), added)
            print_line(line)
            is_right &= not (line["free_errors"] or line["constrained_errors"])
            is_right &= line["constrained"]["valid"] == line["constrained"]["whole"]
            if index > 0:  # the first one warms up
                p99[added].append(line["free_gap_p99_ms"])
    medians = {added: statistics.median(p99[added]) for added in ADDED}
    ratios = {
        f"hostile_to_{other}": round(medians["hostile"] / medians[other], 3)
        for other in ("nothing", "ordinary")
    }
    print_line({"free_gap_p99_ms": medians, **ratios})
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
