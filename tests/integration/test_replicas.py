"""A server with two engines: one is killed, then one is stopped, while streams run on both."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import anyio
import httpx
import psutil
import pytest
from transformers import AutoTokenizer

from tests.integration.random_model import save_random_model
from tests.integration.serving import Json, Server, body, client, serve

LONG = {"max_new_tokens": 1500, "ignore_eos": True}


class Load:
    """Streams that run at once, and how each ended."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http
        self.last_events: list[Json] = []

    async def listen(self, number: int, started: anyio.Event) -> None:
        """Read one stream to its end. Each has a prompt of its own."""
        request = body(f"{number} " * 40, LONG)
        async with self._http.stream("POST", "/generate_stream", json=request) as stream:
            assert stream.status_code == 200
            data = ""
            async for line in stream.aiter_lines():
                started.set()
                data = line.removeprefix("data: ") or data
        self.last_events.append(json.loads(data))

    @property
    def num_whole(self) -> int:
        return sum(event.get("generated_text") is not None for event in self.last_events)

    @property
    def errors(self) -> list[Json]:
        return [event for event in self.last_events if "error" in event]


def engine_pids(server: Server) -> list[int]:
    children = psutil.Process(server.process.pid).children()
    return sorted(child.pid for child in children if "tokenloom_engine.process" in child.cmdline())


async def until_ready(http: httpx.AsyncClient, count: int) -> None:
    with anyio.fail_after(60):
        while (await http.get("/info")).json()["replicas_ready"] != count:
            await anyio.sleep(0.02)


@pytest.mark.anyio
async def test_one_engine_killed_then_one_stopped(model_path: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    save_random_model(folder, AutoTokenizer.from_pretrained(model_path))
    config = json.loads((folder / "config.json").read_text())
    # Longer streams than a fast machine ends before the signal.
    config["max_position_embeddings"] = 4096
    (folder / "config.json").write_text(json.dumps(config))
    flags = ("--model-id", str(folder), "--dtype", "float32", "--replicas", "2")
    with serve(tmp_path / "log", *flags, "--engine-stall-timeout", "2") as server:
        async with client(server) as http:
            info = (await http.get("/info")).json()
            assert (info["replicas"], info["replicas_ready"]) == (2, 2)
            for number in (signal.SIGKILL, signal.SIGSTOP):
                pids = engine_pids(server)
                assert len(pids) == 2
                load = Load(http)
                async with anyio.create_task_group() as tasks:
                    started = [anyio.Event() for _ in range(6)]
                    for stream, event in enumerate(started):
                        tasks.start_soon(load.listen, stream, event)
                    for event in started:
                        await event.wait()
                    assert load.last_events == []
                    os.kill(pids[0], number)
                    await until_ready(http, 1)
                    assert (await http.get("/health")).status_code == 200
                    again = await http.post("/generate", json=body("More", {"max_new_tokens": 3}))
                    assert again.status_code == 200
                assert len(load.errors) > 0 and load.num_whole > 0, "those of the other go on"
                assert len(load.errors) + load.num_whole == 6, "none hangs"
                assert {event["error_type"] for event in load.errors} == {"generation"}
                await until_ready(http, 2)
                assert pids[1] in engine_pids(server) and pids[0] not in engine_pids(server)
            assert server.metric("tgi_engine_restarts") == 2
            assert server.metric("tgi_engine_replicas_ready") == 2
        assert "replica=1" in server.log.read_text()
