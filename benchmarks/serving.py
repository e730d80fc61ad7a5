"""Closed-loop load on /generate_stream: one JSON line of rates and latencies a concurrency."""

from __future__ import annotations

import argparse
import sys

from benchmarks.dialects import GenerateStream
from benchmarks.load import Server
from benchmarks.own_server import own_server
from benchmarks.report import print_line
from benchmarks.workload import Workload, read_schemas


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", help="a running server; without it, one is started for the run")
    parser.add_argument("--server-args", default="", help='flags of the started server, "--a b"')
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument(
        "--requests", type=int, help="at each concurrency; default 4 a client, >= 8"
    )
    parser.add_argument("--prompt-words", type=int, default=100)
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--seed", default="0", help="of the prompts' words")
    parser.add_argument(
        "--constrained",
        nargs="?",
        const="",
        metavar="FILE",
        help="constrain the output by a JSON schema: the file's, or a small one of a person",
    )
    return parser.parse_args(arguments)


def main() -> int:
    """Run every level; 1 if a request failed."""
    options = parse_arguments()
    workload = Workload(
        prompt_words=options.prompt_words,
        max_tokens=options.max_tokens,
        seed=options.seed,
        schemas=read_schemas(options.constrained),
    )
    num_errors = 0
    with own_server(options.url, options.server_args) as url:
        server = Server(url, GenerateStream())
        for concurrency in options.concurrency:
            num_requests = options.requests or max(8, 4 * concurrency)
            level = server.run(workload.requests(concurrency, num_requests), concurrency)
            num_errors += len(level.errors)
            print_line(level.figures())
    return 1 if num_errors else 0


if __name__ == "__main__":
    sys.exit(main())
