"""Temporary folders that do not outlive their owner for long.

The owner holds a lock on its folder. The kernel releases it however the owner ends, so that a later
process can tell a folder in use from one that was left behind.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def temporary_folder(parent: Path, prefix: str) -> Iterator[Path]:
    """Make a folder in `parent` that only this user can enter; remove it at the end.

    First removes those of the same prefix whose owner is gone. Raises OSError.
    """
    remove_abandoned(parent, prefix)
    folder, lock = _make_locked(parent, prefix)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def remove_abandoned(parent: Path, prefix: str) -> None:
    """Remove this user's folders in `parent` that begin with `prefix` and have no owner."""
    with suppress(OSError), os.scandir(parent) as entries:
        for entry in entries:
            if entry.name.startswith(prefix):
                with suppress(OSError):  # it has gone, is another user's, or cannot be locked
                    _remove_if_abandoned(Path(entry.path))


def _remove_if_abandoned(folder: Path) -> None:
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        status = os.fstat(lock)
        if stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and _try_to_lock(lock):
            shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(lock)


def _make_locked(parent: Path, prefix: str) -> tuple[Path, int]:
    """Make a folder; returns it and the descriptor that holds its lock.

    Another process may take it for an abandoned one before it is locked. Then make another one.
    """
    while True:
        folder = Path(tempfile.mkdtemp(dir=parent, prefix=prefix))
        try:
            lock = os.open(folder, os.O_RDONLY)
        except FileNotFoundError:
            continue
        with suppress(OSError):  # a file system without locks; nothing is removed there, either
            if not _try_to_lock(lock) or not folder.is_dir():
                os.close(lock)
                continue
        return folder, lock


def _try_to_lock(descriptor: int) -> bool:
    """Return False if another process has the lock. Raises OSError where there are no locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
