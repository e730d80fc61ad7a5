"""A Ray cluster of two nodes on this machine, and the application on it."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import yaml

CONFIG = Path(__file__).parents[2] / "deploy" / "ray" / "config.yaml"
HEAD, WORKER = "127.0.0.2", "127.0.0.3"
START_SECONDS = 180.0
METRIC_SECONDS = "1"
"""Interval of the reports of the metrics that autoscaling reads."""
NODE_FLAGS = ["--num-cpus=2", "--object-store-memory=100000000", "--disable-usage-stats", "--block"]


def program(name: str) -> str:
    """A program of Ray's environment."""
    return str(Path(os.environ["RAY_BIN"]) / name)


@dataclass(frozen=True)
class Cluster:
    """Two nodes, and Serve on the first of them."""

    url: str
    address: str
    dashboard: str
    folder: Path
    nodes: Mapping[str, psutil.Process]

    def raylet(self, node: str) -> psutil.Process:
        """The process that stands for a node."""
        return _child(self.nodes[node], "/raylet")

    def replica(self, node: str) -> psutil.Process:
        """The process of the engine's replica on a node."""
        return _child(self.raylet(node), "ray::ServeReplica:tokenloom:Engine")

    def engine(self, node: str) -> psutil.Process:
        """The engine process of that replica."""
        return _child(self.replica(node), "tokenloom_engine.process")

    def metric(self, name: str) -> dict[str, float]:
        """A metric of each replica, without its other labels."""
        values: dict[str, float] = {}
        for line in httpx.get(f"{self.url}/metrics", timeout=30).text.splitlines():
            if line.startswith(f'{name}{{replica="'):
                values[line.split('"')[1]] = float(line.rsplit(" ", 1)[1])
        return values

    def deploy(self, num_replicas: int, engine: Mapping[str, Any], **flags: object) -> None:
        """Deploy the application's configuration with changes; wait until it answers."""
        config = yaml.safe_load(CONFIG.read_text())
        config |= {
            "proxy_location": "HeadOnly",  # the nodes share their ports
            "http_options": {"host": "127.0.0.1", "port": int(self.url.rsplit(":", 1)[1])},
        }
        (application,) = config["applications"]
        application["args"] = {"num_threads": 1, "max_batch_total_tokens": 8192, **flags}
        deployment = next(d for d in application["deployments"] if d["name"] == "Engine")
        deployment["autoscaling_config"] |= {
            "min_replicas": num_replicas,
            "max_replicas": num_replicas,
            **engine,
        }
        (self.folder / "config.yaml").write_text(yaml.safe_dump(config))
        environment = _environment() | {"RAY_DASHBOARD_ADDRESS": self.dashboard}
        command = [program("serve"), "deploy", str(self.folder / "config.yaml")]
        subprocess.run(command, env=environment, check=True, capture_output=True)
        wait_until(lambda: self.is_running(num_replicas))
        wait_until(lambda: len(self.metric("tgi_queue_size")) == num_replicas)

    def is_running(self, num_replicas: int) -> bool:
        """Return whether the configuration that was deployed last has come into effect."""
        answer = httpx.get(f"{self.dashboard}/api/serve/applications/", timeout=30).json()
        application = answer["applications"].get("tokenloom", {"status": "missing"})
        assert application["status"] != "DEPLOY_FAILED", application
        return application["status"] == "RUNNING" and num_replicas == len(
            application["deployments"]["Engine"]["replicas"]
        )


@contextmanager
def cluster() -> Iterator[Cluster]:
    """Start the nodes; end all their processes when the block is left."""
    port, dashboard, http = _free_port(), _free_port(), _free_port()
    folder = Path(tempfile.mkdtemp(prefix="ray"))  # the paths of its sockets must be short
    head = [
        "--head",
        f"--port={port}",
        f"--node-ip-address={HEAD}",
        f"--dashboard-host={HEAD}",
        f"--dashboard-port={dashboard}",
        f"--temp-dir={folder}",
        f"--ray-client-server-port={_free_port()}",
        f"--dashboard-agent-listen-port={_free_port()}",
        "--min-worker-port=22000",
        "--max-worker-port=22499",
    ]
    worker = [
        f"--address={HEAD}:{port}",
        f"--node-ip-address={WORKER}",
        f"--dashboard-agent-listen-port={_free_port()}",
        "--min-worker-port=22500",
        "--max-worker-port=22999",
    ]
    nodes: dict[str, psutil.Process] = {}
    try:
        for node, flags in ((HEAD, head), (WORKER, worker)):
            nodes[node] = _start_node(folder / node, flags)
        yield Cluster(
            f"http://127.0.0.1:{http}",
            f"{HEAD}:{port}",
            f"http://{HEAD}:{dashboard}",
            folder,
            nodes,
        )
    finally:
        _end([*nodes.values(), *_processes_of(folder)])
        shutil.rmtree(folder, ignore_errors=True)


def wait_until(condition: Any, seconds: float = START_SECONDS) -> None:  # noqa: ANN401
    """Wait until a condition holds and does not raise a transport error."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        with suppress(httpx.TransportError):
            if condition():
                return
        time.sleep(0.2)
    raise AssertionError("not in time")


def _start_node(log: Path, flags: list[str]) -> psutil.Process:
    with log.open("wb") as stream:
        command = [program("ray"), "start", *NODE_FLAGS, *flags]
        process = psutil.Popen(command, stdout=stream, stderr=stream, env=_environment())
    wait_until(lambda: process.poll() is not None or "runtime started" in log.read_text())
    assert process.poll() is None, log.read_text()
    return process


def _environment() -> dict[str, str]:
    return {
        **os.environ,
        "RAY_SERVE_REPLICA_AUTOSCALING_METRIC_PUSH_INTERVAL_S": METRIC_SECONDS,
    }


def _child(parent: psutil.Process, part: str) -> psutil.Process:
    for child in parent.children(recursive=True):
        with suppress(psutil.Error):
            if any(part in word for word in child.cmdline()):
                return child
    raise AssertionError(f"{parent.pid} has no process {part}")


def _processes_of(folder: Path) -> list[psutil.Process]:
    """Processes of the cluster that its nodes left behind."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if any(str(folder) in word for word in process.cmdline()):
                found.append(process)
    return found


def _end(processes: list[psutil.Process]) -> None:
    everything = list(processes)
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            everything += process.children(recursive=True)
    for process in everything:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(everything, timeout=20)


def _free_port() -> int:
    with socket.create_server(("127.0.0.2", 0)) as server:
        port: int = server.getsockname()[1]
        return port
