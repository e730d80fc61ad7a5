"""Closed-loop load on /generate_stream: one JSON line of rates and latencies a concurrency."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import aiohttp

from benchmarks.measurement import Level, Measurement
from benchmarks.own_server import own_server
from benchmarks.workload import Workload, read_schema


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
    parser.add_argument("--seed", type=int, default=0, help="of the prompts' words")
    parser.add_argument(
        "--constrained",
        nargs="?",
        const="",
        metavar="FILE",
        help="constrain the output by a JSON schema: the file's, or a small one of a person",
    )
    return parser.parse_args(arguments)


async def stream_events(response: aiohttp.ClientResponse) -> AsyncIterator[dict[str, Any]]:
    """The JSON payload of each server-sent event."""
    async for line in response.content:
        if line.startswith(b"data:"):
            yield json.loads(line[len(b"data:") :])


async def measure(session: aiohttp.ClientSession, url: str, body: dict[str, Any]) -> Measurement:
    """Stream one request to its end. Raises RuntimeError if the server answers with an error."""
    measurement = Measurement()
    started_at = time.perf_counter()
    finished = False
    async with session.post(f"{url}/generate_stream", json=body) as response:
        if response.status != 200:
            raise RuntimeError(f"{response.status}: {await response.text()}")
        async for event in stream_events(response):
            if "error" in event:
                raise RuntimeError(event["error"])
            measurement.add_token(time.perf_counter() - started_at)
            finished = event["generated_text"] is not None
    if not finished:
        raise RuntimeError("the stream ended without its last event")
    return measurement


async def client(
    session: aiohttp.ClientSession, url: str, bodies: Iterator[dict[str, Any]], level: Level
) -> None:
    """Send one request after the other until none is left."""
    for body in bodies:
        try:
            level.measurements.append(await measure(session, url, body))
        except (RuntimeError, aiohttp.ClientError, TimeoutError) as error:
            level.errors.append(f"{type(error).__name__}: {error}")


async def run_level(
    url: str, workload: Workload, concurrency: int, num_requests: int
) -> dict[str, Any]:
    """Keep `concurrency` requests in flight until all have ended."""
    bodies = workload.bodies(concurrency, num_requests)
    level = Level()
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=None, sock_read=300)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        started_at = time.perf_counter()
        clients = (client(session, url, bodies, level) for _ in range(concurrency))
        await asyncio.gather(*clients)
        wall_seconds = time.perf_counter() - started_at
    return {"concurrency": concurrency, **level.figures(wall_seconds)}


def main() -> int:
    """Run every level; 1 if a request failed."""
    options = parse_arguments()
    workload = Workload(
        prompt_words=options.prompt_words,
        max_tokens=options.max_tokens,
        seed=options.seed,
        schema=read_schema(options.constrained),
    )
    num_errors = 0
    with own_server(options.url, options.server_args) as url:
        for concurrency in options.concurrency:
            num_requests = options.requests or max(8, 4 * concurrency)
            figures = asyncio.run(run_level(url, workload, concurrency, num_requests))
            num_errors += figures["errors"]
            sys.stdout.write(json.dumps(figures) + "\n")
            sys.stdout.flush()
    return 1 if num_errors else 0


if __name__ == "__main__":
    sys.exit(main())
