"""Our server and others on the same work, in turn: free and constrained requests, and the ratios.

Starts each server itself. Of those named by --peers, one whose executable is not found is reported
as missing, and the others are measured.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.dialects import Completions, GenerateStream
from benchmarks.load import Server
from benchmarks.machine import machine_figures
from benchmarks.own_server import free_port, own_server, stop, wait_until_healthy
from benchmarks.peers import OURS, Peers
from benchmarks.report import print_line
from benchmarks.schemas import PERSON
from benchmarks.workload import Workload

MODEL_NAME = "model"


@dataclass(frozen=True, slots=True)
class Peer:
    """Another server: how it is started."""

    executable: str
    arguments: str
    """With {model}, {gguf} and {port}."""
    environment: tuple[tuple[str, str], ...] = ()


COMMON_VLLM = (
    "serve {model} --host 127.0.0.1 --port {port} --dtype bfloat16 --max-model-len 4096 "
    f"--served-model-name {MODEL_NAME} --structured-outputs-config "
)
ON_CPU = (("HF_HUB_OFFLINE", "1"), ("VLLM_CPU_KVCACHE_SPACE", "4"))
PEERS = {
    # White space in JSON is off, as ours is: small models lose themselves in it.
    "vllm-xgrammar": Peer(
        "vllm",
        COMMON_VLLM + """'{{"backend":"xgrammar","disable_any_whitespace":true}}'""",
        ON_CPU,
    ),
    "vllm-guidance": Peer(
        "vllm",
        COMMON_VLLM + """'{{"backend":"guidance","disable_any_whitespace":true}}'""",
        ON_CPU,
    ),
    "llama.cpp": Peer(
        "llama-server",
        f"-m {{gguf}} --host 127.0.0.1 --port {{port}} -np 32 -c 32768 -cb --alias {MODEL_NAME}",
    ),
}


@contextmanager
def running_peer(name: str, options: argparse.Namespace) -> Iterator[str | None]:
    """The URL of a peer that was started for us; None if it is not installed."""
    peer = PEERS[name]
    search = os.pathsep.join([*options.path, os.environ["PATH"]])
    executable = shutil.which(peer.executable, path=search)
    if executable is None:
        yield None
        return
    port = free_port()
    arguments = peer.arguments.format(model=options.model, gguf=options.gguf, port=port)
    environment = {**os.environ, **dict(peer.environment), **dict(options.env)}
    process = subprocess.Popen(
        [executable, *shlex.split(arguments)], stdout=sys.stderr, env=environment
    )
    try:
        url = f"http://127.0.0.1:{port}"
        wait_until_healthy(url, process)
        yield url
    finally:
        stop(process)


def main() -> int:
    """Print the machine, the missing, then a line a run and one of medians a level."""
    options = _arguments()
    print_line({"measured": "machine", **machine_figures()})
    with ExitStack() as running:
        model = ["--model-id", str(options.model)] if options.model else []
        flags = shlex.join([*model, *shlex.split(options.server_args)])
        own = running.enter_context(own_server(None, flags))
        servers = {OURS: Server(own, GenerateStream())}
        for name in options.peers:
            url = running.enter_context(running_peer(name, options))
            if url is None:
                print_line({"measured": "missing", "server": name})
            else:
                servers[name] = Server(url, Completions(MODEL_NAME))
        num_failures = sum(_compare(servers, label, options) for label in options.work)
    print_line({"measured": "machine", **machine_figures()})
    return 1 if num_failures else 0


def _compare(servers: dict[str, Server], label: str, options: argparse.Namespace) -> int:
    is_free = label == "free"
    workload = Workload(
        prompt_words=(100,) if is_free else (60,),
        max_tokens=128 if is_free else 160,
        seed=f"{options.seed}/{label}",
        schemas=() if is_free else (PERSON,),
    )
    peers = Peers(servers, workload, label)
    peers.warm_up()
    for concurrency in options.concurrency:
        num_requests = min(options.most_requests, max(6, 2 * concurrency))
        peers.run(concurrency, num_requests, options.rounds)
    return peers.num_failures


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, help="folder with weights that all servers load")
    parser.add_argument("--gguf", type=Path, help="the same model for llama.cpp")
    parser.add_argument("--peers", nargs="*", choices=PEERS, default=list(PEERS))
    parser.add_argument("--path", nargs="+", default=[], help="folders with the peers' programs")
    parser.add_argument(
        "--env",
        nargs="+",
        default=[],
        type=lambda text: tuple(text.split("=", 1)),
        metavar="NAME=VALUE",
        help="for the peers",
    )
    parser.add_argument("--server-args", default="", help='flags of our server, "--a b"')
    parser.add_argument("--work", nargs="+", choices=["free", "person"], default=["free", "person"])
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--most-requests", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seed", default="0", help="of the prompts' words")
    options = parser.parse_args()
    if options.peers and options.model is None:
        parser.error("--peers needs --model")
    return options


if __name__ == "__main__":
    sys.exit(main())
