"""What this installation runs on, for a report of a fault. Nothing secret is in it."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil

from tokenloom_engine.cache import cache_folder
from tokenloom_engine.cgroup import memory_headroom, usable_cores
from tokenloom_engine.errors import LoadError

PACKAGES = (
    "torch",
    "transformers",
    "tokenizers",
    "safetensors",
    "huggingface-hub",
    "llguidance",
    "xgrammar",
    "pyzmq",
    "fastapi",
    "uvicorn",
    "pydantic",
)
GPU_QUERY = (
    "nvidia-smi",
    "--query-gpu=name,memory.total,driver_version",
    "--format=csv,noheader",
)
GPU_QUERY_SECONDS = 10
GIB = 1 << 30


def environment_report(hub_cache: str | None) -> str:
    """The report: one fact a line."""
    width = 18
    return "".join(f"{name + ':':<{width}}{value}\n" for name, value in _facts(hub_cache))


def _facts(hub_cache: str | None) -> Iterator[tuple[str, str]]:
    yield "tokenloom", version("tokenloom")
    yield "Python", f"{platform.python_version()} ({platform.python_implementation()})"
    yield "platform", platform.platform()
    yield "CPU", f"{_cpu()}, {usable_cores()} of {os.cpu_count()} cores usable"
    memory = psutil.virtual_memory()
    available = min(memory.available, memory_headroom())
    yield "memory", f"{memory.total / GIB:.1f} GiB, {available / GIB:.1f} GiB available"
    for number, gpu in enumerate(_gpus()):
        yield f"GPU {number}", gpu
    for package in PACKAGES:
        yield package, _version(package)
    try:
        for name, folder in _folders(hub_cache):
            yield name, f"{folder} ({_room(folder)})"
    except LoadError as error:
        yield "converted models", str(error)


def _cpu() -> str:
    """The processor's name, where the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def _gpus() -> list[str]:
    """One line a GPU, by its driver's tool; the front process does not load torch."""
    if shutil.which(GPU_QUERY[0]) is None:
        return ["none found (there is no nvidia-smi)"]
    try:
        ended = subprocess.run(
            GPU_QUERY, capture_output=True, text=True, timeout=GPU_QUERY_SECONDS, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        return [f"unknown ({error})"]
    return ended.stdout.strip().splitlines() or ["none"]


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _folders(hub_cache: str | None) -> Iterator[tuple[str, Path]]:
    from huggingface_hub.constants import HF_HUB_CACHE

    yield "Hub models", Path(hub_cache or HF_HUB_CACHE)
    yield "converted models", cache_folder()


def _room(folder: Path) -> str:
    """How much the folder's disk has room for."""
    existing = next(place for place in (folder, *folder.parents) if place.exists())
    room = f"{shutil.disk_usage(existing).free / GIB:.1f} GiB free"
    return room if folder.exists() else f"not there yet, {room}"
