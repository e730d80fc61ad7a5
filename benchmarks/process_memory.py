"""Memory of a server's processes."""

from __future__ import annotations

import contextlib
from collections import Counter

import psutil

from benchmarks.server_processes import listener

ROLES = {
    "tokenloom_engine.process": "engine",
    "tokenloom_engine.constraints.trials.process": "trials",
    "tokenloom_router.chat_renderer": "renderers",
}
"""By the module that a process runs."""


class ProcessMemory:
    """Reads the memory of a server that this process started."""

    def __init__(self, url: str) -> None:
        front = listener(url)
        if front is None:
            raise ValueError(f"{url} is not a server that this process started")
        self._front = front

    def read(self) -> dict[str, dict[str, float]]:
        """MiB by role: `rss`, `pss` (shared pages in equal parts) and `uss` (private pages)."""
        sums: dict[str, Counter[str]] = {}
        for process in (self._front, *self._front.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):  # a worker that has ended
                info = process.memory_full_info()
                counter = sums.setdefault(self._role(process), Counter())
                counter.update({"rss": info.rss, "pss": info.pss, "uss": info.uss})
        return {
            role: {name: round(size / 2**20, 1) for name, size in counter.items()}
            for role, counter in sums.items()
        }

    def _role(self, process: psutil.Process) -> str:
        if process == self._front:
            return "front"
        command = process.cmdline()
        return next((ROLES[word] for word in command if word in ROLES), "others")
