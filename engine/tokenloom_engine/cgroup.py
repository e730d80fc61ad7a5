"""Limits of the control group that this process is in, such as a container's."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")
UNLIMITED = float("inf")


def usable_cores() -> int:
    """Number of cores that this process can keep busy, at least 1.

    Threads beyond a CPU quota would be throttled in the middle of a step, so a fraction of a core
    is left to other threads.
    """
    return max(1, int(min(len(os.sched_getaffinity(0)), cpu_quota())))


def cpu_quota() -> float:
    """CPU time per second that the process may take; infinite without a limit."""
    return min(map(_folder_quota, _folders("cpu")), default=UNLIMITED)


def memory_headroom() -> float:
    """Bytes that the limits of memory leave; infinite without a limit."""
    return max(0, min(map(_folder_headroom, _folders("memory")), default=UNLIMITED))


def _folders(controller: str) -> Iterator[Path]:
    """Folders of the process's group and of the groups around it, whose limits hold as well."""
    try:
        lines = MEMBERSHIP.read_text().splitlines()
    except OSError:
        return
    paths: dict[str, str] = {}
    for line in lines:
        _, controllers, path = line.split(":", 2)
        paths |= dict.fromkeys(controllers.split(","), path)
    # Version 1 has a tree for each controller, version 2 one tree without a name.
    base, path = ROOT, paths.get("", "/")
    if controller in paths:
        base, path = ROOT / controller, paths[controller]
    folder = base / path.lstrip("/")
    yield folder
    if folder != base:
        yield from (parent for parent in folder.parents if parent.is_relative_to(base))


def _folder_quota(folder: Path) -> float:
    try:
        quota, period = (folder / "cpu.max").read_text().split()
    except OSError:
        try:
            quota = (folder / "cpu.cfs_quota_us").read_text().strip()
            period = (folder / "cpu.cfs_period_us").read_text()
        except OSError:
            return UNLIMITED
    except ValueError:
        return UNLIMITED
    return UNLIMITED if quota in ("max", "-1") else int(quota) / int(period)


def _folder_headroom(folder: Path) -> float:
    for limit_name, usage_name in (
        ("memory.max", "memory.current"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes"),
    ):
        try:
            limit = (folder / limit_name).read_text().strip()
            usage = int((folder / usage_name).read_text())
        except (OSError, ValueError):
            continue
        return UNLIMITED if limit == "max" else int(limit) - usage + _cached_files(folder)
    return UNLIMITED


def _cached_files(folder: Path) -> int:
    """Bytes that the kernel frees on demand, and counts as used."""
    try:
        lines = (folder / "memory.stat").read_text().splitlines()
    except OSError:
        return 0
    values = dict(line.split(maxsplit=1) for line in lines)
    # Version 1 has a group's own number besides, without the groups in it.
    return int(values.get("total_inactive_file", values.get("inactive_file", 0)))
