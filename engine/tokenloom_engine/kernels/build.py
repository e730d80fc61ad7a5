"""Builds the C++ kernels for the kind of CPU at hand, once: the library is then kept.

The sources need a C++17 compiler and nothing else: their functions take pointers, so the library
is bound to no version of torch. It is built at the first start into the cache folder, or by
`python -m tokenloom_engine.kernels.build` for every kind of CPU into this package, as images and
wheels do that are to run without a compiler.
"""

from __future__ import annotations

import argparse
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

from tokenloom_engine.cache import cache_folder, keep
from tokenloom_engine.child_environment import child_environment
from tokenloom_engine.errors import LoadError
from tokenloom_engine.kernels.levels import LEVELS, Level

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
STATIC_RUNTIME = ("-static-libstdc++", "-lgcc", "-Wl,--exclude-libs,ALL", "-Wl,--gc-sections")
"""Flags of the linker, for a library that runs where the compiler's own libraries are older.

What it uses of them becomes a part of it, except for exceptions: libgcc's static unwinder needs a
newer libc. So does what it does not use, which is left out.
"""


def build_kernels(level: Level) -> Path | None:
    """Path of the library for CPUs of this level. None if it cannot be built.

    Raises LoadError if the cache folder cannot be written.
    """
    name = library_name(level)
    if (PREBUILT / name).is_dir():
        return PREBUILT / name / LIBRARY
    compiler = find_compiler()
    if compiler is None:
        logger.warning("No C++ compiler: linear layers by oneDNN, attention by torch (slower)")
        return None
    folder = cache_folder() / "kernels" / name
    try:
        if not folder.is_dir():
            logger.info("Building the CPU kernels (only now; they are then kept in %s)", folder)
        return keep(folder, lambda target: compile_library(compiler, level, target)) / LIBRARY
    except subprocess.CalledProcessError as error:
        lines = [line for line in error.stderr.splitlines() if "error" in line]
        logger.warning(
            "The CPU kernels do not build (%s): linear layers by oneDNN, attention by torch "
            "(slower)",
            lines[0] if lines else f"{compiler} exits with {error.returncode}",
        )
        return None


def find_compiler() -> str | None:
    """Path of the C++ compiler: of CXX, or the system's."""
    return shutil.which(os.environ.get("CXX", "c++"))


def knows_flags(compiler: str, level: Level) -> bool:
    """Return whether the compiler has the flags of this level. GCC before 11 lacks most."""
    command = [compiler, *level.flags, "-fsyntax-only", "-x", "c++", os.devnull]
    return subprocess.run(command, capture_output=True, env=child_environment()).returncode == 0


def library_name(level: Level) -> str:
    """The name of a library's folder: the level, and a digest of all that it is made from."""
    digest = hashlib.blake2b(digest_size=8)
    for source in sorted(SOURCES.iterdir()):
        digest.update(source.read_bytes())
    digest.update(repr((FLAGS, level.flags, platform.machine())).encode())
    return f"{level.name}-{digest.hexdigest()}"


def compile_library(
    compiler: str, level: Level, target: Path, link_flags: Sequence[str] = ()
) -> None:
    """Compile the kernels into the folder `target`.

    Raises subprocess.CalledProcessError.
    """
    sources = sorted(SOURCES.glob("*.cpp"))
    objects = [target / f"{source.stem}.o" for source in sources]

    def compile_one(source: Path, result: Path) -> None:
        _run([compiler, *FLAGS, *level.flags, "-c", str(source), "-o", str(result)])

    with ThreadPoolExecutor() as threads:
        list(threads.map(compile_one, sources, objects))
    library = str(target / LIBRARY)
    _run([compiler, "-shared", "-pthread", *map(str, objects), *link_flags, "-o", library])
    for file in objects:
        file.unlink()


def _run(command: list[str]) -> None:
    subprocess.run(command, capture_output=True, check=True, text=True, env=child_environment())


def main(arguments: Sequence[str] | None = None) -> int:
    """Build for every kind of CPU of this architecture."""
    parser = argparse.ArgumentParser(prog="python -m tokenloom_engine.kernels.build")
    parser.add_argument(
        "folder", nargs="?", type=Path, default=PREBUILT, help="default: %(default)s"
    )
    parser.add_argument(
        "--static-runtime",
        action="store_true",
        help="link libstdc++ in, for machines with an older one",
    )
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    compiler = find_compiler()
    if compiler is None:
        logger.error("No C++ compiler: set CXX, or install one")
        return 1
    link_flags = STATIC_RUNTIME if options.static_runtime else ()
    for level in LEVELS:
        if not knows_flags(compiler, level):
            logger.warning("%s: skipped, %s has no %s", level.name, compiler, " ".join(level.flags))
            continue
        folder = options.folder / library_name(level)

        def compile_level(target: Path, level: Level = level) -> None:
            compile_library(compiler, level, target, link_flags)

        try:
            keep(folder, compile_level)
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
