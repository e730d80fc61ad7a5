"""The lock files: complete, hashed, of this project's ranges, and of no machine's own index."""

from __future__ import annotations

import importlib.metadata
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
RUNTIME = PROJECT["project"]["dependencies"]
EXTRAS = PROJECT["project"]["optional-dependencies"]
BUILD = PROJECT["dependency-groups"]["build"]
LOCKS = sorted((ROOT / "requirements").glob("lock*.txt"))
NOT_LOCKED = {"torch", *PROJECT["tool"]["uv"]["exclude-dependencies"]}
"""torch is pinned apart; the others are parts of its builds for GPUs."""
HASH = re.compile(r"    --hash=sha256:[0-9a-f]{64}")
PYTHONS = ("3.11", "3.12", "3.13")
SYSTEMS = {"linux": "Linux", "darwin": "Darwin"}


def listed(name: str) -> list[str]:
    lines = (ROOT / "requirements" / name).read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


SOURCES = {
    "lock.txt": RUNTIME,
    "lock-build.txt": BUILD,
    "lock-dev.txt": [
        *RUNTIME,
        *EXTRAS["dev"],
        *EXTRAS["xgrammar"],
        *BUILD,
        *listed("xgrammar.txt"),
    ],
    "lock-clients.txt": listed("clients.txt"),
    "lock-clients-older-hub.txt": listed("clients-older-hub.txt"),
}


def locked(name: str) -> Iterator[tuple[Requirement, int]]:
    """Each package of a lock file, and how many hashes it has."""
    text = "\n".join(listed(name))
    for block in re.split(r"\n(?=\S)", text):
        first, *others = block.splitlines()
        hashes = [line for line in others if HASH.fullmatch(line.removesuffix(" \\"))]
        yield Requirement(first.removesuffix(" \\")), len(hashes)


def versions(name: str, environment: dict[str, str]) -> dict[str, list[str]]:
    """The versions that a lock file installs there, of each package."""
    found: dict[str, list[str]] = {}
    for requirement, _ in locked(name):
        if requirement.marker is None or requirement.marker.evaluate(environment):
            (pin,) = requirement.specifier
            assert pin.operator == "=="
            found.setdefault(canonicalize_name(requirement.name), []).append(pin.version)
    return found


def machine(python: str, system: str) -> dict[str, str]:
    values = {name: str(value) for name, value in default_environment().items()}
    values |= {"python_version": python, "python_full_version": f"{python}.4"}
    return values | {"sys_platform": system, "platform_system": SYSTEMS[system], "extra": ""}


def test_each_lock_file_has_a_source() -> None:
    assert {path.name for path in LOCKS} == set(SOURCES)


@pytest.mark.parametrize("path", LOCKS, ids=lambda path: path.stem)
def test_every_package_has_hashes(path: Path) -> None:
    packages = list(locked(path.name))
    assert packages
    assert [requirement.name for requirement, num_hashes in packages if num_hashes == 0] == []


@pytest.mark.parametrize("path", LOCKS, ids=lambda path: path.stem)
def test_names_no_index_and_no_file(path: Path) -> None:
    """An address or a path would be of the machine that wrote the file."""
    lines = path.read_text().splitlines()
    assert [
        line
        for line in lines
        if "://" in line
        or re.search(r"(^|\s)(/|-[a-z]|--\w)", line)
        and not HASH.fullmatch(line.removesuffix(" \\"))
        and not re.fullmatch(r"    #\s+(via )?-[cr] requirements/[\w.-]+\.txt", line)
    ] == []


@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize("name", SOURCES)
def test_locks_a_version_in_range(name: str, python: str, system: str) -> None:
    environment = machine(python, system)
    found = versions(name, environment)
    for requirement in map(Requirement, SOURCES[name]):
        marker, package = requirement.marker, canonicalize_name(requirement.name)
        if package in NOT_LOCKED or (marker is not None and not marker.evaluate(environment)):
            continue
        (version,) = found[package]
        assert version in requirement.specifier, f"{requirement} is locked as {version}"


@pytest.mark.parametrize("python", PYTHONS)
def test_development_has_the_versions_of_the_runtime(python: str) -> None:
    environment = machine(python, "linux")
    everything = versions("lock-dev.txt", environment)
    for name in ("lock.txt", "lock-build.txt"):
        assert versions(name, environment).items() <= everything.items()


def test_what_the_packages_need_is_locked() -> None:
    """`pip install --no-deps` installs nothing that is not listed."""
    environment = machine(PYTHONS[0], "linux")
    names = versions("lock.txt", environment)
    for name in (*names, "torch"):
        for text in importlib.metadata.requires(name) or ():
            needed = Requirement(text)
            if needed.marker is None or needed.marker.evaluate(environment):
                assert canonicalize_name(needed.name) in names.keys() | NOT_LOCKED, (
                    f"{name}: {text}"
                )
