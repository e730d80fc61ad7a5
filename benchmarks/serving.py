"""Load on servers: rates and latencies of several workloads, at numbers of clients or at rates.

Prints a JSON line for each round, and one of the medians. With several --server-args, as many
servers are started and measured in turn, and the medians have ratios to the first one's.
"""

from __future__ import annotations

import argparse
import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from benchmarks.dialects import GenerateStream
from benchmarks.load import Server
from benchmarks.machine import machine_figures
from benchmarks.own_server import own_server
from benchmarks.plots import MISSING, can_plot, plot
from benchmarks.report import Report
from benchmarks.rounds import Load, Rounds
from benchmarks.schemas import PERSON
from benchmarks.workload import Workload, read_schema

WORKLOADS = {
    "plain": Workload(prompt_words=(100,), max_tokens=128, seed="plain"),
    "mix": Workload(prompt_words=(20, 100, 300, 1000), max_tokens=128, seed="mix"),
    "shared": Workload(prompt_words=(20,), max_tokens=64, seed="shared", shared_words=1000),
    "long": Workload(prompt_words=(100,), max_tokens=128, seed="long", long_words=3000),
    "constrained": Workload(
        prompt_words=(60,), max_tokens=160, seed="constrained", schemas=(PERSON,)
    ),
}


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", help="a running server; without it, one is started for the run")
    parser.add_argument(
        "--server-args",
        action="append",
        help='flags of the started server, "--a b"; once for each, where there are several',
    )
    parser.add_argument("--workload", nargs="+", choices=WORKLOADS, default=["plain"])
    parser.add_argument("--concurrency", type=int, nargs="+", help="clients; default 1 8 32")
    parser.add_argument(
        "--rate", type=float, nargs="+", default=[], help="requests a second, whoever still waits"
    )
    parser.add_argument(
        "--requests",
        type=int,
        help="in each round; default 4 a client, or for about 20 seconds, but 8 at least",
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--prompt-words", type=int, nargs="+", help="one is drawn for each prompt")
    parser.add_argument("--max-tokens", type=int)
    parser.add_argument("--schema", type=Path, help="constrain the output by this file's schema")
    parser.add_argument("--seed", default="0", help="of the prompts' words")
    parser.add_argument("--output", type=Path, help="keep the lines in this file, as a JSON array")
    parser.add_argument("--plot", type=Path, help="draw the medians into this file (.png, .svg)")
    options = parser.parse_args(arguments)
    if options.url and options.server_args:
        parser.error("--server-args are for servers started here, and --url names a running one")
    if options.plot and not can_plot():
        parser.error(MISSING)
    options.server_args = options.server_args or [""]
    if options.concurrency is None:
        options.concurrency = [] if options.rate else [1, 8, 32]
    return options


def main() -> int:
    """Run every workload at every load; 1 if a request failed or an output was not valid."""
    options = parse_arguments()
    report = Report(options.output)
    report.add({"measured": "machine", **machine_figures()})
    loads = [Load(concurrency=c, num_requests=options.requests) for c in options.concurrency]
    loads += [Load(rate=rate, num_requests=options.requests) for rate in options.rate]
    num_failures = 0
    with ExitStack() as running:
        servers = {
            flags: Server(
                running.enter_context(own_server(options.url, flags)),
                GenerateStream(),
            )
            for flags in options.server_args
        }
        for name in options.workload:
            rounds = Rounds(servers, name, _workload(name, options), report)
            rounds.warm_up()
            for load in loads:
                rounds.run(load, options.rounds)
            num_failures += rounds.num_failures
    if options.plot:
        plot(report.lines, options.plot)
    return 1 if num_failures else 0


def _workload(name: str, options: argparse.Namespace) -> Workload:
    workload = WORKLOADS[name]
    return replace(
        workload,
        seed=f"{options.seed}/{name}",
        prompt_words=tuple(options.prompt_words or workload.prompt_words),
        max_tokens=options.max_tokens or workload.max_tokens,
        schemas=(read_schema(options.schema),) if options.schema else workload.schemas,
    )


if __name__ == "__main__":
    sys.exit(main())
