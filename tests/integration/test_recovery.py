"""The engine process killed under load: errors for those in flight, then service again."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import anyio
import httpx
import psutil
import pytest

from tests.integration.serving import Json, Server, body, client, serve, wait_until_healthy

STORY = "Once upon a time, in a small town by the sea,"
LONG = {"max_new_tokens": 2000, "ignore_eos": True}
ENDLESS: Json = {"max_tokens": 2000, "ignore_eos": True, "stream": True}
OPENAI: dict[str, Json] = {
    "/v1/completions": {"prompt": STORY, **ENDLESS},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": STORY}], **ENDLESS},
    "/v1/responses": {"input": f"Tell me more: {STORY}", "temperature": 0, "stream": True},
}


@pytest.fixture
def own_server(model_path: Path, tmp_path: Path) -> Iterator[Server]:
    with serve(tmp_path / "log", "--model-id", str(model_path)) as server:
        yield server


@pytest.mark.anyio
async def test_killed_under_load(own_server: Server) -> None:
    plain: list[httpx.Response] = []
    last_events: list[Json] = []
    lines: dict[str, list[str]] = {}
    async with client(own_server) as http:

        async def ask() -> None:
            plain.append(await http.post("/generate", json=body(STORY, LONG)))

        async def listen(started: anyio.Event) -> None:
            async with http.stream("POST", "/generate_stream", json=body(STORY, LONG)) as stream:
                data = ""
                async for line in stream.aiter_lines():
                    started.set()
                    data = line.removeprefix("data: ") or data
            last_events.append(json.loads(data))

        async def read(path: str, started: anyio.Event) -> None:
            async with http.stream("POST", path, json=OPENAI[path]) as stream:
                async for line in stream.aiter_lines():
                    started.set()
                    lines.setdefault(path, []).append(line)

        with anyio.fail_after(30):
            async with anyio.create_task_group() as tasks:
                streams = [anyio.Event() for _ in range(8)]
                for started in streams:
                    tasks.start_soon(listen, started)
                    tasks.start_soon(ask)
                dialect = {path: anyio.Event() for path in OPENAI}
                for path, started in dialect.items():
                    tasks.start_soon(read, path, started)
                for started in (*streams, *dialect.values()):
                    await started.wait()
                os.kill(own_server.engine_pid(), signal.SIGKILL)
                killed = time.monotonic()
                while (health := await http.get("/health")).status_code == 200:
                    await anyio.sleep(0.05)  # a process of gigabytes takes its time to end
                refused = await http.post("/generate", json=body(STORY, {}))
    assert len(plain) == len(last_events) == 8, "none hangs"
    for response in plain:
        assert response.status_code == 424
        assert response.json()["error_type"] == "generation"
    for event in last_events:
        assert event["error_type"] == "generation"
        assert event["error"].startswith("Request failed during generation: ")
    assert_openai_streams_tell(lines)
    assert health.status_code == refused.status_code == 503
    assert health.json()["error_type"] == "healthcheck"
    wait_until_healthy(own_server)
    print(f"serves again after {time.monotonic() - killed:.1f} s")  # noqa: T201
    assert own_server.generate(STORY, max_new_tokens=3)["generated_text"]
    assert own_server.metric("tgi_engine_restarts") == 1
    assert own_server.metric("tgi_batch_current_size") == 0


def assert_openai_streams_tell(lines: dict[str, list[str]]) -> None:
    """Each ends with the error; the response, which has no [DONE], with what became of it."""
    data = {
        path: [line.removeprefix("data: ") for line in told if line.startswith("data: ")]
        for path, told in lines.items()
    }
    for path in ("/v1/completions", "/v1/chat/completions"):
        *_, error, done = data[path]
        assert done == "[DONE]"
        assert json.loads(error)["error"]["code"] == "generation"
    error, failed = (json.loads(event) for event in data["/v1/responses"][-2:])
    assert error["type"] == "error" and error["code"] == "generation"
    assert failed["type"] == "response.failed" and failed["response"]["status"] == "failed"
    assert failed["response"]["error"]["message"] == error["message"]


def test_nothing_outlives_the_front(model_path: Path, tmp_path: Path) -> None:
    with serve(tmp_path / "log", "--model-id", str(model_path)) as server:
        assert server.engine_pid()
        children = psutil.Process(server.process.pid).children(recursive=True)
        assert len(children) >= 3, "the engine, the trial process and its worker"
        server.process.kill()
        server.process.wait(10)
        deadline = time.monotonic() + 10
        while any(child.is_running() for child in children):
            assert time.monotonic() < deadline, "a process is still there"
            time.sleep(0.1)


def test_a_second_signal_leaves_no_tracebacks(model_path: Path, tmp_path: Path) -> None:
    long = body(STORY, {"max_new_tokens": 1500, "ignore_eos": True})
    flags = ("--model-id", str(model_path))
    with serve(tmp_path / "log", *flags) as server, ThreadPoolExecutor(8) as threads:
        paths = ("/generate_stream", "/generate") * 4
        answers = [
            threads.submit(httpx.post, server.url + path, json=long, timeout=60) for path in paths
        ]
        while server.metric("tgi_batch_current_size") < len(paths):
            time.sleep(0.05)
        for _ in range(2):
            server.process.send_signal(signal.SIGTERM)
            time.sleep(0.3)
        assert {answer.result().status_code for answer in answers} == {200, 424}
        assert server.process.wait(30) == 0
        assert "Traceback" not in server.log.read_text()
