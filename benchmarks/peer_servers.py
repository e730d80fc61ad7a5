"""Other servers: how each is started, and what it can do."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.dialects import Completions, LlamaCompletions, TransformersCompletions
from benchmarks.load import Server
from benchmarks.own_server import free_port, stop, wait_until_healthy

MODEL_NAME = "model"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The model that all serve."""

    folder: Path | None
    gguf: Path | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """Another server."""

    executable: str
    arguments: str
    """With {model}, {gguf} and {port}."""
    environment: tuple[tuple[str, str], ...] = ()
    """{folder} in a value is the executable's."""
    dialect: type[Completions] = Completions
    name_of_model: str = MODEL_NAME
    """In requests. With {model}."""
    has_schemas: bool = True
    needs_folder: bool = True
    """Whether it loads the folder and not the GGUF file."""


COMMON_VLLM = (
    "serve {model} --host 127.0.0.1 --port {port} --dtype bfloat16 --max-model-len 4096 "
    f"--served-model-name {MODEL_NAME} --structured-outputs-config "
)
ON_CPU = (("HF_HUB_OFFLINE", "1"), ("VLLM_CPU_KVCACHE_SPACE", "4"))
PEERS = {
    # White space in JSON is off, as ours is: small models lose themselves in it.
    "vllm-xgrammar": Peer(
        executable="vllm",
        arguments=COMMON_VLLM + """'{{"backend":"xgrammar","disable_any_whitespace":true}}'""",
        environment=ON_CPU,
    ),
    "vllm-guidance": Peer(
        executable="vllm",
        arguments=COMMON_VLLM + """'{{"backend":"guidance","disable_any_whitespace":true}}'""",
        environment=ON_CPU,
    ),
    "llama.cpp": Peer(
        executable="llama-server",
        arguments=f"-m {{gguf}} --host 127.0.0.1 --port {{port}} -np 32 -c 32768 -cb "
        f"--alias {MODEL_NAME}",
        environment=(("LD_LIBRARY_PATH", "{folder}"),),
        dialect=LlamaCompletions,
        needs_folder=False,
    ),
    "transformers": Peer(
        executable="transformers",
        arguments="serve {model} --continuous-batching --host 127.0.0.1 --port {port} "
        "--device cpu --dtype bfloat16",
        environment=(("HF_HUB_OFFLINE", "1"),),
        dialect=TransformersCompletions,
        name_of_model="{model}",
        has_schemas=False,
    ),
}


@contextmanager
def running_peer(
    name: str, checkpoint: Checkpoint, path: Sequence[str], environment: Mapping[str, str]
) -> Iterator[Server | None]:
    """A peer that is started for the block; None if its program is not found."""
    peer = PEERS[name]
    executable = shutil.which(peer.executable, path=os.pathsep.join([*path, os.environ["PATH"]]))
    if executable is None:
        yield None
        return
    port = free_port()
    names = {"model": checkpoint.folder, "gguf": checkpoint.gguf, "port": port}
    folder = Path(executable).parent
    own = {variable: value.format(folder=folder) for variable, value in peer.environment}
    process = subprocess.Popen(
        [executable, *shlex.split(peer.arguments.format(**names))],
        stdout=sys.stderr,
        env={**os.environ, **own, **environment},
    )
    try:
        url = f"http://127.0.0.1:{port}"
        wait_until_healthy(url, process)
        yield Server(url, peer.dialect(peer.name_of_model.format(**names)))
    finally:
        stop(process)
