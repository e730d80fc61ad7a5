from __future__ import annotations

import os
from pathlib import Path

import psutil
import pytest
import torch

from tokenloom_engine import cgroup
from tokenloom_engine.memory import CPU_SHARE, memory_for_kv_cache

GIB = 1 << 30
NO_LIMIT = str((1 << 63) - 4096)
"""Limit of memory without a limit, in cgroup version 1."""


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(cgroup, "ROOT", tmp_path / "sys")
    monkeypatch.setattr(cgroup, "MEMBERSHIP", tmp_path / "membership")
    return tmp_path / "sys"


def member(root: Path, *lines: str) -> None:
    (root.parent / "membership").write_text("".join(f"{line}\n" for line in lines))


def write(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("_", ".", 1)).write_text(f"{text}\n")


def test_no_cgroup() -> None:
    assert cgroup.cpu_quota() == cgroup.memory_headroom() == float("inf")
    assert cgroup.usable_cores() == len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("text", "quota"),
    [("max 100000", float("inf")), ("150000 100000", 1.5), ("20000 50000", 0.4), ("?", None)],
)
def test_the_quota_of_a_container(root: Path, text: str, quota: float | None) -> None:
    member(root, "0::/")
    write(root, cpu_max=text)
    assert cgroup.cpu_quota() == (float("inf") if quota is None else quota)


@pytest.mark.parametrize(("quota", "cores"), [("40000", 1), ("150000", 1), ("200000", 2)])
def test_cores_are_those_of_the_quota(
    root: Path, monkeypatch: pytest.MonkeyPatch, quota: str, cores: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(8)))
    member(root, "0::/")
    write(root, cpu_max=f"{quota} 100000")
    assert cgroup.usable_cores() == cores
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {3})
    assert cgroup.usable_cores() == 1


def test_a_limit_of_a_parent_holds(root: Path) -> None:
    member(root, "0::/system.slice/tokenloom.service")
    write(root / "system.slice", cpu_max="100000 100000", memory_max=str(GIB), memory_current="0")
    service = root / "system.slice/tokenloom.service"
    write(service, cpu_max="400000 100000", memory_max="max", memory_current="5")
    assert (cgroup.cpu_quota(), cgroup.memory_headroom()) == (1, GIB)
    write(service, cpu_max="50000 100000", memory_max="1000")
    assert (cgroup.cpu_quota(), cgroup.memory_headroom()) == (0.5, 995)


def test_cached_files_are_free_memory(root: Path) -> None:
    member(root, "0::/")
    stat = f"anon 1\nfile {3 * GIB}\ninactive_file {2 * GIB}"
    write(root, memory_max=str(4 * GIB), memory_current=str(3 * GIB), memory_stat=stat)
    assert cgroup.memory_headroom() == 3 * GIB
    write(root, memory_current=str(7 * GIB))
    assert cgroup.memory_headroom() == 0


@pytest.mark.parametrize("path", ["/", "/docker/1"])
def test_version_1(root: Path, path: str) -> None:
    # Without a namespace of its own, a container sees its host's path and its own folder alone.
    member(root, f"4:cpu,cpuacct:{path}", f"3:memory:{path}", "0::/")
    write(root / "unified")
    cpu, memory = root / "cpu", root / "memory"
    write(cpu, cpu_cfs_quota_us="250000", cpu_cfs_period_us="100000")
    stat = "inactive_file 1\ntotal_inactive_file 100"
    write(memory, memory_limit_in_bytes="1000", memory_usage_in_bytes="400", memory_stat=stat)
    assert (cgroup.cpu_quota(), cgroup.memory_headroom()) == (2.5, 700)
    write(cpu, cpu_cfs_quota_us="-1")
    write(memory, memory_limit_in_bytes=NO_LIMIT)
    assert cgroup.cpu_quota() == float("inf")
    assert cgroup.memory_headroom() > 1 << 60


def test_the_kv_cache_takes_a_share_of_the_limit(root: Path) -> None:
    member(root, "0::/")
    write(root, memory_max=str(1 << 20), memory_current="0")
    assert psutil.virtual_memory().available > 1 << 20
    assert memory_for_kv_cache(torch.device("cpu")) == int(CPU_SHARE * (1 << 20))
