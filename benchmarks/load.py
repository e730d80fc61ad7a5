"""Load on a server: closed-loop, by clients that wait for answers, or open-loop, by the clock."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import aiohttp

from benchmarks.dialects import Dialect
from benchmarks.measurement import Level, Measurement
from benchmarks.workload import Request

READ_TIMEOUT_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class Server:
    """A running server and the API to measure it by."""

    url: str
    dialect: Dialect

    def run(self, requests: Iterable[Request], concurrency: int) -> Level:
        """Keep `concurrency` requests in flight until all have ended."""
        return asyncio.run(self.collect(requests, concurrency))

    async def collect(self, requests: Iterable[Request], concurrency: int) -> Level:
        """The same, for a caller that has more to do meanwhile."""
        level = Level(concurrency)
        queue = iter(requests)
        async with _session() as session:
            started_at = time.perf_counter()
            clients = (self._client(session, queue, level) for _ in range(concurrency))
            await asyncio.gather(*clients)
            level.wall_seconds = time.perf_counter() - started_at
        return level

    def run_open(self, requests: Iterable[Request], rate: float, seed: str) -> Level:
        """Send so many requests a second, at random times, whether or not others have ended.

        Latencies count from when a request was due, also if it could not be sent at once.
        """
        return asyncio.run(self._collect_open(requests, rate, seed))

    async def _collect_open(self, requests: Iterable[Request], rate: float, seed: str) -> Level:
        level = Level(None, rate=rate)
        draw = random.Random(f"{seed}/{rate}")
        async with _session() as session, asyncio.TaskGroup() as group:
            started_at = due_at = time.perf_counter()
            for request in requests:
                await asyncio.sleep(max(0.0, due_at - time.perf_counter()))
                group.create_task(self._send(session, request, level, due_at))
                due_at += draw.expovariate(rate)
        level.wall_seconds = time.perf_counter() - started_at
        return level

    async def _client(
        self, session: aiohttp.ClientSession, queue: Iterator[Request], level: Level
    ) -> None:
        """Send one request after the other until none is left."""
        for request in queue:
            await self._send(session, request, level, time.perf_counter())

    async def _send(
        self, session: aiohttp.ClientSession, request: Request, level: Level, due_at: float
    ) -> None:
        try:
            level.measurements.append(await self._measure(session, request, due_at))
        except (RuntimeError, aiohttp.ClientError, TimeoutError) as error:
            level.errors.append(f"{type(error).__name__}: {error}")

    async def _measure(
        self, session: aiohttp.ClientSession, request: Request, due_at: float
    ) -> Measurement:
        """Stream one request to its end. Raises RuntimeError if the server reports an error."""
        body = self.dialect.body(request)
        measurement = Measurement(request, due_at, time.perf_counter() - due_at)
        async with session.post(f"{self.url}{self.dialect.path}", json=body) as response:
            if response.status != 200:
                raise RuntimeError(f"{response.status}: {await response.text()}")
            async for event in stream_events(response):
                if "error" in event:
                    raise RuntimeError(event["error"])
                self.dialect.take(event, time.perf_counter() - due_at, measurement)
        if not measurement.is_finished:
            raise RuntimeError("the stream ended without its last event")
        return measurement


def _session() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        # A connection a request: not all servers keep them.
        connector=aiohttp.TCPConnector(limit=0, force_close=True),
        timeout=aiohttp.ClientTimeout(total=None, sock_read=READ_TIMEOUT_SECONDS),
    )


async def stream_events(response: aiohttp.ClientResponse) -> AsyncIterator[dict[str, Any]]:
    """The JSON payload of each server-sent event."""
    async for line in response.content:
        if line.startswith(b"data:") and line.strip() != b"data: [DONE]":
            yield json.loads(line[len(b"data:") :])
