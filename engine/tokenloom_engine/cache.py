"""The cache folder: what is made once and kept between starts."""

from __future__ import annotations

import errno
import logging
import os
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path

import platformdirs

from tokenloom_engine.errors import LoadError
from tokenloom_engine.temporary_folder import remove_abandoned, temporary_folder

logger = logging.getLogger(__name__)

KINDS = ("kernels", "models", "tokenizers")
"""Its folders."""
UNFINISHED = ".unfinished-"
"""Prefix of what is being written."""


def cache_folder() -> Path:
    """Return the folder: in XDG_CACHE_HOME, else in the user's home, else a temporary one.

    Raises LoadError if others can write to the temporary one.
    """
    try:
        folder = platformdirs.user_cache_path("tokenloom")
        if not os.environ.get("XDG_CACHE_HOME"):
            folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # the home cannot be written to, or there is none
        return _temporary_cache()
    return folder


def prepare_cache() -> None:
    """Remove what interrupted processes left in the folder; warn if it is a temporary one."""
    folder = cache_folder()
    for kind in KINDS:
        remove_abandoned(folder / kind, UNFINISHED)
    if folder.name != "tokenloom":
        logger.warning(
            "No home folder can be written to. The cache is %s: if it is removed, the next start "
            "is slow. Set XDG_CACHE_HOME to a folder that stays",
            folder,
        )


def keep(folder: Path, write: Callable[[Path], None]) -> Path:
    """Make `folder` in one go: `write` fills a temporary one, which then takes its name.

    Two processes may do it at once; an interrupted one leaves nothing half written, also if the
    machine fails. Raises LoadError if the disk is full or cannot be written to, and what `write`
    raises besides.
    """
    if folder.is_dir():
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with temporary_folder(folder.parent, UNFINISHED) as temporary:
            write(temporary)
            _flush(temporary)
            _let_read(temporary)
            try:
                os.rename(temporary, folder)
            except OSError:
                if not folder.is_dir():  # else another process was first, with the same contents
                    raise
            _flush_entry(folder.parent)
    except OSError as error:
        raise LoadError(
            f"cannot write to the cache folder {folder.parent} ({error.strerror or error}); "
            f"{_remedy(error)}"
        ) from error
    return folder


def _remedy(error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "free some space, or set XDG_CACHE_HOME to a folder on another disk"
    return "set XDG_CACHE_HOME to a folder that can be written"


def _temporary_cache() -> Path:
    """Make a folder that this user's processes share, and nobody else can enter."""
    folder = Path(tempfile.gettempdir()) / f"tokenloom-cache-{os.geteuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
    except OSError as error:
        raise LoadError(
            f"no home folder can be written to, and {folder} cannot be made ({error.strerror}); "
            "set XDG_CACHE_HOME to a folder that can be written"
        ) from error
    is_own = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
    if not is_own or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise LoadError(
            f"no home folder can be written to, and others can write to {folder}; "
            "set XDG_CACHE_HOME to a folder of this user"
        )
    return folder


def _let_read(folder: Path) -> None:
    """Let other users read the folder: a container's user may be another one at each start."""
    folder.chmod(0o755)
    for path in folder.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)


def _flush(folder: Path) -> None:
    """Have all that is in the folder written to the disk."""
    for path in (*folder.rglob("*"), folder):
        _flush_entry(path)


def _flush_entry(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
