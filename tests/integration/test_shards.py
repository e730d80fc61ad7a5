"""A server whose model is spread over two processes, through what can befall one of them."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import httpx
import psutil
from transformers import AutoTokenizer

from tests.integration.random_model import save_random_model
from tests.integration.serving import Server, body, serve, wait_until_healthy

SETTINGS = {"max_new_tokens": 12, "details": True}


def follower(server: Server) -> psutil.Process:
    children = psutil.Process(server.engine_pid()).children()
    (process,) = (c for c in children if "tokenloom_engine.follower" in c.cmdline())
    return process


def test_a_shard_killed_and_a_front_killed(model_path: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    save_random_model(folder, AutoTokenizer.from_pretrained(model_path))
    flags = ("--model-id", str(folder), "--dtype", "float32", "--num-shard", "2")
    with serve(tmp_path / "log", *flags, "--engine-nice", "2") as server:
        asked = httpx.post(f"{server.url}/generate", json=body("Water boils at", SETTINGS))
        assert asked.headers["x-compute-type"] == "2-cpu"
        assert asked.json()["details"]["generated_tokens"] == 12
        niceness = min(19, psutil.Process(server.process.pid).nice() + 2)
        assert psutil.Process(server.engine_pid()).nice() == niceness
        assert follower(server).nice() == niceness

        follower(server).kill()
        while httpx.get(f"{server.url}/health").status_code == 200:
            time.sleep(0.05)
        wait_until_healthy(server)
        again = server.generate("Water boils at", **SETTINGS)
        assert again["generated_text"] == asked.json()["generated_text"]
        assert server.metric("tgi_engine_restarts") == 1
        assert "shard 1 of the model has ended (signal 9)" in server.log.read_text()

        children = psutil.Process(server.process.pid).children(recursive=True)
        stopped = follower(server)
        assert stopped in children
        os.kill(stopped.pid, signal.SIGSTOP)
        server.process.kill()
        server.process.wait(10)
        _, alive = psutil.wait_procs(children, timeout=10)
        assert alive == [], "even one that cannot see that its input has closed"
