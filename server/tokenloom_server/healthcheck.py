"""Health check of a container: a request to the server that runs in it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from http.client import HTTPConnection, HTTPException
from pathlib import PurePath

import psutil

from tokenloom_server.listener import EVERYWHERE

SECONDS = 8
"""Timeout of the request, less than that of the image's HEALTHCHECK."""


def server_flags(command_lines: Iterable[Sequence[str]]) -> list[str] | None:
    """Flags of the first server among the command lines; None without a server."""
    for words in command_lines:
        # The first word may be Python's.
        for index, word in enumerate(words[:2]):
            name = PurePath(word).name
            if name == "text-generation-launcher":
                return [*words[index + 1 :]]
            if name == "tokenloom" and words[index + 1 : index + 2] == ["serve"]:
                return [*words[index + 2 :]]
    return None


def running_commands() -> list[list[str]]:
    """Command lines of the processes in this container, the oldest first."""
    return [process.info["cmdline"] or [] for process in psutil.process_iter(["cmdline"])]


def failure(hostname: str, port: int) -> str | None:
    """Reason why the server does not take requests; None if it does."""
    connection = HTTPConnection(EVERYWHERE.get(hostname, hostname), port, timeout=SECONDS)
    try:
        connection.request("GET", "/health")
        status = connection.getresponse().status
    except (OSError, HTTPException) as error:
        return f"no answer on {hostname} port {port}: {error}"
    finally:
        connection.close()
    return None if status == 200 else f"/health on port {port} answers {status}"
