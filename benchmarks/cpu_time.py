"""CPU seconds of a server's processes, and of the client that measures it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field

import psutil

from benchmarks.server_processes import listener

PARTS = ("front", "engine", "others", "client")


@dataclass
class CpuTime:
    """Reads what a server used that this process started."""

    url: str
    _processes: dict[str, list[psutil.Process]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        front = listener(self.url)
        self._processes = {"client": [psutil.Process()]}
        if front is None:
            return
        children = front.children(recursive=True)
        engine = [child for child in children if _runs_engine(child)]
        others = [child for child in children if child not in engine]
        self._processes |= {"front": [front], "engine": engine, "others": others}

    def read(self) -> dict[str, float]:
        """CPU seconds up to now by part; of a server somebody else started, the client's alone."""
        return {
            part: sum(_seconds(process) for process in self._processes[part])
            for part in PARTS
            if part in self._processes
        }

    @contextlib.contextmanager
    def spent(self) -> Iterator[dict[str, float]]:
        """Yield a dictionary that has, after the block, what the parts used in it."""
        before = self.read()
        used: dict[str, float] = {}
        yield used
        used |= {part: seconds - before[part] for part, seconds in self.read().items()}


def _runs_engine(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return "tokenloom_engine.process" in process.cmdline()
    return False


def _seconds(process: psutil.Process) -> float:
    with contextlib.suppress(psutil.Error):  # it has ended
        times = process.cpu_times()
        return float(times.user + times.system)
    return 0.0
