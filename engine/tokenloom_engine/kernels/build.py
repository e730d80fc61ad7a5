"""Builds the C++ kernels for the kind of CPU at hand, once: the library is then kept.

The sources need a C++17 compiler and nothing else: their functions take pointers, so the library
is bound to no version of torch. It is built at the first start into the cache folder, or by
`python -m tokenloom_engine.kernels.build` for every kind of CPU into this package, as an image does
that is to run without a compiler.
"""

from __future__ import annotations

import hashlib
import logging
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch

from tokenloom_engine.cache import cache_folder, keep
from tokenloom_engine.child_environment import child_environment
from tokenloom_engine.errors import LoadError

logger = logging.getLogger(__name__)

SOURCES = Path(__file__).parent / "csrc"
PREBUILT = Path(__file__).parent / "prebuilt"
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


@dataclass(frozen=True, slots=True)
class Level:
    """A kind of CPU that the library is built for."""

    title: str
    """For the log."""
    needed: tuple[str, ...]
    """Instructions that the CPU must have, by their names in `torch.cpu.get_capabilities()`."""
    flags: tuple[str, ...]
    """Of the compiler."""


_AVX512 = ("avx512_f", "avx512_bw", "avx512_vl", "avx512_dq")
_AVX2 = ("avx2", "fma3", "f16c", "bmi2")
X86_LEVELS = {
    "avx512_bf16": Level(
        "AVX-512 with bfloat16",
        ("avx512_bf16", "avx512_vnni", *_AVX512),
        ("-march=x86-64-v4", "-mavx512bf16", "-mavx512vnni"),
    ),
    "avx512_vnni": Level(
        "AVX-512 with VNNI", ("avx512_vnni", *_AVX512), ("-march=x86-64-v4", "-mavx512vnni")
    ),
    "avx512": Level("AVX-512", _AVX512, ("-march=x86-64-v4",)),
    "avx2_vnni": Level(
        "AVX2 with VNNI", ("avx_vnni", *_AVX2), ("-march=x86-64-v3", "-mavxvnni")
    ),
    "avx2": Level("AVX2", _AVX2, ("-march=x86-64-v3",)),
    "baseline": Level("SSE2", (), ()),
}
ARM_LEVELS = {
    "neon_bf16": Level(
        "NEON with bfloat16 and products of bytes",
        ("dot", "bf16", "i8mm"),
        ("-march=armv8.2-a+dotprod+bf16+i8mm",),
    ),
    "neon_dot": Level("NEON with products of bytes", ("dot",), ("-march=armv8.2-a+dotprod",)),
    "baseline": Level("NEON", (), ()),
}
OTHER_LEVELS = {"baseline": Level("the compiler's vectors", (), ())}
LEVELS = {
    "x86_64": X86_LEVELS,
    "AMD64": X86_LEVELS,
    "aarch64": ARM_LEVELS,
    "arm64": ARM_LEVELS,
}.get(platform.machine(), OTHER_LEVELS)
"""Levels of this architecture, the best first."""


def best_level(
    capabilities: Mapping[str, object] | None = None, levels: Mapping[str, Level] = LEVELS
) -> str:
    """The name of the best level that a CPU with these capabilities has; None for this CPU's."""
    found = torch.cpu.get_capabilities() if capabilities is None else capabilities
    return next(
        name for name, level in levels.items() if all(found.get(need) for need in level.needed)
    )


def build_kernels(level: str) -> Path | None:
    """Path of the library for CPUs of this level. None if it cannot be built.

    Raises LoadError if the cache folder cannot be written.
    """
    name = _name(level)
    if (PREBUILT / name).is_dir():
        return PREBUILT / name / LIBRARY
    compiler = _compiler()
    if compiler is None:
        logger.warning("No C++ compiler: linear layers by oneDNN, attention by torch (slower)")
        return None
    folder = cache_folder() / "kernels" / name
    try:
        if not folder.is_dir():
            logger.info("Building the CPU kernels (only now; they are then kept in %s)", folder)
        return keep(folder, lambda target: _compile(compiler, level, target)) / LIBRARY
    except subprocess.CalledProcessError as error:
        lines = [line for line in error.stderr.splitlines() if "error" in line]
        logger.warning(
            "The CPU kernels do not build (%s): linear layers by oneDNN, attention by torch "
            "(slower)",
            lines[0] if lines else f"{compiler} exits with {error.returncode}",
        )
        return None


def _compiler() -> str | None:
    return shutil.which(os.environ.get("CXX", "c++"))


def _name(level: str) -> str:
    """Of a library's folder: the level, and a digest of all that it is made from."""
    digest = hashlib.blake2b(digest_size=8)
    for source in sorted(SOURCES.iterdir()):
        digest.update(source.read_bytes())
    digest.update(repr((FLAGS, LEVELS[level].flags)).encode())
    return f"{level}-{digest.hexdigest()}"


def _compile(compiler: str, level: str, target: Path) -> None:
    sources = sorted(SOURCES.glob("*.cpp"))
    objects = [target / f"{source.stem}.o" for source in sources]

    def compile_one(source: Path, result: Path) -> None:
        _run([compiler, *FLAGS, *LEVELS[level].flags, "-c", str(source), "-o", str(result)])

    with ThreadPoolExecutor() as threads:
        list(threads.map(compile_one, sources, objects))
    _run([compiler, "-shared", "-pthread", *map(str, objects), "-o", str(target / LIBRARY)])
    for file in objects:
        file.unlink()


def _run(command: list[str]) -> None:
    subprocess.run(command, capture_output=True, check=True, text=True, env=child_environment())


def main() -> int:
    """Build for every kind of CPU of this architecture, into the package."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    compiler = _compiler()
    if compiler is None:
        logger.error("No C++ compiler: set CXX, or install one")
        return 1
    for level in LEVELS:
        folder = PREBUILT / _name(level)
        try:
            keep(folder, lambda target, level=level: _compile(compiler, level, target))  # type: ignore[misc]
        except subprocess.CalledProcessError as error:
            logger.error("%s", error.stderr)
            return 1
        except LoadError as error:
            logger.error("%s", error)
            return 1
        logger.info("%s", folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
