"""Our server and others on the same work, in turn: free and constrained requests, and the ratios.

Starts each server itself. Of those named by --peers, one whose executable is not found is reported
as missing, and the others are measured.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from contextlib import ExitStack
from pathlib import Path

from benchmarks.dialects import Completions
from benchmarks.load import Server
from benchmarks.machine import machine_figures
from benchmarks.own_server import own_server
from benchmarks.peer_servers import PEERS, Checkpoint, running_peer
from benchmarks.peers import OURS, Peers
from benchmarks.report import print_line
from benchmarks.schemas import PERSON
from benchmarks.workload import Workload
from tokenloom_server.bundled_model import bundled_model_path


def main() -> int:
    """Print the machine, the missing, then a line a run and one of medians a level."""
    options = _arguments()
    print_line({"measured": "machine", **machine_figures()})
    checkpoint = Checkpoint(options.model, options.gguf)
    with ExitStack() as running:
        model = ["--model-id", str(options.model)] if options.model else []
        named = ["--served-model-name", OURS]
        flags = shlex.join([*model, *named, *shlex.split(options.server_args)])
        own = running.enter_context(own_server(None, flags))
        servers = {OURS: Server(own, Completions(OURS))}
        for name in options.peers:
            environment = {
                variable: value for peer, variable, value in options.env if name.startswith(peer)
            }
            starting = running_peer(name, checkpoint, options.path, environment)
            try:
                server = running.enter_context(starting)
            except RuntimeError as error:
                print_line({"measured": "failed", "server": name, "error": str(error)})
                continue
            if server is None:
                print_line({"measured": "missing", "server": name})
            else:
                servers[name] = server
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
    if not is_free:
        unable = [name for name in servers if name != OURS and not PEERS[name].has_schemas]
        for name in unable:
            print_line({"measured": "missing", "server": name, "schemas": label})
        servers = {name: server for name, server in servers.items() if name not in unable}
    peers = Peers(servers, workload, label)
    peers.warm_up()
    for concurrency in options.concurrency:
        num_requests = min(options.most_requests, max(6, 2 * concurrency))
        peers.run(concurrency, num_requests, options.rounds)
    return peers.num_failures


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, help="folder with weights that all servers load")
    parser.add_argument("--gguf", type=Path, help="the same for llama.cpp; default the bundled one")
    parser.add_argument("--peers", nargs="*", choices=PEERS, default=list(PEERS))
    parser.add_argument("--path", nargs="+", default=[], help="folders with the peers' programs")
    parser.add_argument(
        "--env",
        nargs="+",
        default=[],
        type=_variable,
        metavar="[PEER:]NAME=VALUE",
        help="for all peers, or for those whose names begin so",
    )
    parser.add_argument("--server-args", default="", help='flags of our server, "--a b"')
    parser.add_argument("--work", nargs="+", choices=["free", "person"], default=["free", "person"])
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--most-requests", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seed", default="0", help="of the prompts' words")
    options = parser.parse_args()
    if options.model is None and any(PEERS[name].needs_folder for name in options.peers):
        parser.error("--model is needed by all peers but llama.cpp")
    if options.gguf is None and "llama.cpp" in options.peers:
        options.gguf = bundled_model_path()
    return options


def _variable(text: str) -> tuple[str, str, str]:
    """The beginning of the peers' names, the variable's name, and its value."""
    name, _, value = text.partition("=")
    peer, _, name = name.rpartition(":")
    return peer, name, value


if __name__ == "__main__":
    sys.exit(main())
