"""Builds the C++ kernels for the CPU at hand, once: the library is then kept in the cache folder.

The sources need a C++17 compiler and nothing else: their functions take pointers, so the library
is bound to no version of torch. It is built at the first start, or at image build by
`python -m tokenloom_engine.kernels.build`.
"""

from __future__ import annotations

import hashlib
import logging
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from tokenloom_engine.checkpoint import cache_folder, keep
from tokenloom_engine.errors import LoadError

logger = logging.getLogger(__name__)

SOURCES = Path(__file__).parent / "csrc"
LIBRARY = "kernels.so"
FLAGS = (
    "-std=c++17",
    "-O3",
    "-fPIC",
    "-pthread",
    "-fno-math-errno",
    # Whether a product and a sum are rounded once or twice is written in the sources. The
    # compiler's choice would differ from loop to loop.
    "-ffp-contract=off",
    "-Wno-psabi",
)
NATIVE = ("-march=native",) if platform.machine() in ("x86_64", "AMD64") else ("-mcpu=native",)


def build_kernels(instructions: Sequence[str] = NATIVE) -> Path | None:
    """Path of the library, built for the CPU of these compiler flags. None if it cannot be built.

    Raises LoadError if the cache folder cannot be written.
    """
    compiler = shutil.which(os.environ.get("CXX", "c++"))
    if compiler is None:
        logger.warning("No C++ compiler: linear layers by oneDNN, attention by torch (slower)")
        return None
    folder = cache_folder() / "kernels" / _digest(compiler, instructions)
    try:
        if not folder.is_dir():
            logger.info("Building the CPU kernels (only now; they are then kept in %s)", folder)
        return keep(folder, lambda target: _compile(compiler, instructions, target)) / LIBRARY
    except subprocess.CalledProcessError as error:
        lines = [line for line in error.stderr.splitlines() if "error" in line]
        logger.warning(
            "The CPU kernels do not build (%s): linear layers by oneDNN, attention by torch "
            "(slower)",
            lines[0] if lines else f"{compiler} exits with {error.returncode}",
        )
        return None


def _digest(compiler: str, instructions: Sequence[str]) -> str:
    """Names what the library depends on."""
    digest = hashlib.blake2b(digest_size=8)
    for source in sorted(SOURCES.iterdir()):
        digest.update(source.read_bytes())
    version = subprocess.run([compiler, "--version"], capture_output=True, check=False).stdout
    digest.update(version)
    # `native` is another CPU on another machine, and the cache folder may travel.
    digest.update(
        repr((FLAGS, instructions, sorted(torch.cpu.get_capabilities().items()))).encode()
    )
    return digest.hexdigest()


def _compile(compiler: str, instructions: Sequence[str], target: Path) -> None:
    sources = sorted(SOURCES.glob("*.cpp"))
    objects = [target / f"{source.stem}.o" for source in sources]

    def compile_one(source: Path, result: Path) -> None:
        _run([compiler, *FLAGS, *instructions, "-c", str(source), "-o", str(result)])

    with ThreadPoolExecutor() as threads:
        list(threads.map(compile_one, sources, objects))
    _run([compiler, "-shared", "-pthread", *map(str, objects), "-o", str(target / LIBRARY)])
    for file in objects:
        file.unlink()


def _run(command: list[str]) -> None:
    subprocess.run(command, capture_output=True, check=True, text=True)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    try:
        sys.exit(build_kernels() is None)
    except LoadError as error:
        sys.exit(str(error))
