"""What constraints cost a step, what forced tokens save, and requests per second beside peers'.

Prints one JSON line a measurement, and one of medians after each group. `sides` compares free,
constrained and forced-token decoding on our server (how: sides.py). `throughput` sends constrained
requests with new prompts to our server and, with --peer-url, in turn to others that take vLLM's
`structured_outputs` on /v1/completions. Exits with 1 if a request failed or an output of ours was
not valid.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace

from benchmarks.dialects import Completions, GenerateStream
from benchmarks.load import Server
from benchmarks.machine import machine_figures
from benchmarks.own_server import own_server
from benchmarks.peers import OURS, Peers
from benchmarks.report import print_line
from benchmarks.schemas import MIXED, PERSON
from benchmarks.sides import Sides
from benchmarks.workload import Workload

SCHEMAS = {"person": (PERSON,), "mixed": MIXED}


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", help="a running server; without it, one is started for the run")
    parser.add_argument("--server-args", default="", help='flags of the started server, "--a b"')
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument(
        "--requests", type=int, help="at each concurrency; default 4 a client, 8 to 64"
    )
    parser.add_argument("--rounds", type=int, default=3, help="how often each side is measured")
    parser.add_argument("--prompt-words", type=int, default=60)
    parser.add_argument("--max-tokens", type=int, default=160)
    parser.add_argument("--seed", default="0", help="of the prompts' words")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--schemas", nargs="+", choices=SCHEMAS, default=list(SCHEMAS))
    parser.add_argument(
        "--peer-url", nargs="+", default=[], help="OpenAI-compatible servers to compare with"
    )
    parser.add_argument("--peer-model", help="their name for the model")
    parser.add_argument("--peer-name", nargs="+", help="in the output; without it, the URLs")
    options = parser.parse_args(arguments)
    if options.peer_url and not options.peer_model:
        parser.error("--peer-url needs --peer-model")
    if options.peer_name and len(options.peer_name) != len(options.peer_url):
        parser.error("--peer-name needs as many names as there are URLs")
    return options


def compare_sides(server: Server, options: argparse.Namespace) -> int:
    """Run the part `sides`. Returns the number of failures."""
    num_failures = 0
    for label in options.schemas:
        workload = _workload(options, label)
        for concurrency in options.concurrency:
            num_requests = _num_requests(options, concurrency)
            requests = list(workload.requests(concurrency, num_requests))
            sides = Sides(server, concurrency, requests, label)
            sides.run(options.rounds)
            num_failures += sides.num_failures
    return num_failures


def compare_throughput(server: Server, options: argparse.Namespace) -> int:
    """Run the part `throughput`. Returns the number of failures."""
    servers = {OURS: server}
    names = options.peer_name or options.peer_url
    for name, url in zip(names, options.peer_url, strict=True):
        servers[name] = Server(url.rstrip("/"), Completions(options.peer_model))
    num_failures = 0
    for label in options.schemas:
        workload = _workload(options, label)
        peers = Peers(servers, replace(workload, seed=f"{workload.seed}/throughput"), label)
        peers.warm_up()
        for concurrency in options.concurrency:
            peers.run(concurrency, _num_requests(options, concurrency), options.rounds)
        num_failures += peers.num_failures
    return num_failures


PARTS = {"sides": compare_sides, "throughput": compare_throughput}


def main() -> int:
    """Run the parts, with the machine's speed before and after."""
    options = parse_arguments()
    num_failures = 0
    print_line({"measured": "machine", **machine_figures()})
    for part in options.parts:
        # Sides with drafts would not have the same steps: free and constrained texts differ.
        flags = "--speculate 0 " if part == "sides" else ""
        with own_server(options.url, flags + options.server_args) as url:
            num_failures += PARTS[part](Server(url, GenerateStream()), options)
    print_line({"measured": "machine", **machine_figures()})
    return 1 if num_failures else 0


def _workload(options: argparse.Namespace, label: str) -> Workload:
    return Workload(
        prompt_words=(options.prompt_words,),
        max_tokens=options.max_tokens,
        seed=f"{options.seed}/{label}",
        schemas=SCHEMAS[label],
    )


def _num_requests(options: argparse.Namespace, concurrency: int) -> int:
    return options.requests or min(64, max(8, 4 * concurrency))


if __name__ == "__main__":
    sys.exit(main())
