"""The processes of servers that this process started."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

import psutil


def listener(url: str) -> psutil.Process | None:
    """The process that takes the server's connections; None of one that somebody else started."""
    port = int(url.rpartition(":")[2])
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            for connection in child.net_connections("tcp"):
                if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port:
                    return child
    return None


@contextlib.contextmanager
def paused(urls: Iterable[str]) -> Iterator[None]:
    """Let these servers do nothing within the block: an idle one may still look for work."""
    processes = [process for url in urls for process in _processes(url)]
    try:
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.suspend()
        yield
    finally:
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.resume()


def _processes(url: str) -> list[psutil.Process]:
    """All processes of a server, from the one that was started on."""
    found = listener(url)
    if found is None:
        return []
    own = psutil.Process()
    first = next(process for process in (found, *found.parents()) if process.ppid() == own.pid)
    return [first, *first.children(recursive=True)]
