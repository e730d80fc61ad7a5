"""Can a hostile grammar hold up the others? In a crowd on a server, and step by step in an engine.

The part `crowd` sends, in each round and all at once, free requests and requests constrained by
many schemas. To these the rounds add, in turn, nothing, hostile requests (grammars that are
ambiguous, explode, never end or take long to compile), or as many ordinary ones of the same length.
What counts is the time between two tokens of the free requests: its last line has the ratios of
their 99th percentiles with the hostile ones to those of the other rounds. Every whole constrained
output is validated against its schema.

The part `step` runs an engine in this process: a few free sequences with one kind of hostile
grammar beside them and without it, in turn. A line for each kind has the steps, the parts of them
that are not the forward, and what CPU time the constraint took of the steps' thread.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from benchmarks.dialects import GenerateStream
from benchmarks.hostile_kinds import KINDS, hostile_grammar
from benchmarks.hostile_steps import KV_TOKENS, HostileSteps
from benchmarks.load import Server
from benchmarks.measurement import Level, percentile_ms
from benchmarks.own_server import own_server
from benchmarks.report import print_line
from benchmarks.schemas import one_of, record, text, whole
from benchmarks.validity import validity_figures
from benchmarks.workload import WORDS, Request
from tokenloom_engine.config import EngineConfig
from tokenloom_server.bundled_model import bundled_model_path

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


def measure_crowd(options: argparse.Namespace) -> bool:
    """Run the part `crowd`. Returns whether all answers were right."""
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
    return is_right


def measure_steps(options: argparse.Namespace) -> bool:
    """Run the part `step`. Always returns True: what is too much depends on the machine."""
    config = EngineConfig(
        model_id=options.model_id or str(bundled_model_path()), max_batch_total_tokens=KV_TOKENS
    )
    steps = HostileSteps(config, rows=options.rows, steps=options.steps)
    for kind in KINDS:
        if not options.kinds or any(word in kind.name for word in options.kinds):
            print_line(steps.run(kind, options.rounds))
    steps.close()
    return True


PARTS = {"crowd": measure_crowd, "step": measure_steps}


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--rounds", type=int, default=3, help="of each kind")
    crowd = parser.add_argument_group("crowd")
    crowd.add_argument("--url", help="a running server; without it, one is started for the run")
    crowd.add_argument("--server-args", default="--max-concurrent-requests 512")
    crowd.add_argument("--free", type=int, default=64)
    crowd.add_argument("--constrained", type=int, default=172)
    crowd.add_argument("--hostile", type=int, default=20)
    crowd.add_argument("--schemas", type=int, default=64)
    crowd.add_argument("--max-tokens", type=int, default=48, help="of free and added requests")
    step = parser.add_argument_group("step")
    step.add_argument("--model-id")
    step.add_argument("--rows", type=int, default=8, help="free sequences")
    step.add_argument("--steps", type=int, default=60, help="measured in each turn")
    step.add_argument("--kinds", nargs="+", help="only those whose names have one of these words")
    options = parser.parse_args()
    are_right = [PARTS[part](options) for part in options.parts]
    return 0 if all(are_right) else 1


if __name__ == "__main__":
    sys.exit(main())
