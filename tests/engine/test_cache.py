"""The cache folder: where it is, what an interrupted process leaves there, what the disk has."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tokenloom_engine.cache import cache_folder, keep, prepare_cache
from tokenloom_engine.errors import LoadError

INTERRUPTED = """
import sys, time
from pathlib import Path
from tokenloom_engine.cache import keep

def write(target):
    (target / "part").write_text("half")
    print("written", flush=True)
    time.sleep(60)

keep(Path(sys.argv[1]), write)
"""


@contextmanager
def writing(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that is in the midst of making `folder`."""
    command = [sys.executable, "-c", INTERRUPTED, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == b"written\n"
            yield process
        finally:
            process.kill()


def test_what_fails_half_way_leaves_nothing(tmp_path: Path) -> None:
    def write(target: Path) -> None:
        (target / "part").write_text("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        keep(tmp_path / "cache" / "model", write)
    assert list((tmp_path / "cache").iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_what_an_interrupted_process_left_goes_at_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    models = cache_folder() / "models"
    with writing(models / "one") as interrupted, writing(models / "two"):
        assert len(list(models.iterdir())) == 2
        interrupted.send_signal(number)
        interrupted.wait()
        prepare_cache()
        (left,) = models.iterdir()
        assert (left / "part").read_text() == "half", "that of the process that still runs"
        assert keep(models / "three", lambda target: None).is_dir()
        assert left.is_dir()
    prepare_cache()
    assert [entry.name for entry in models.iterdir()] == ["three"]


def test_other_users_can_read_it(tmp_path: Path) -> None:
    def write(target: Path) -> None:
        (target / "part").touch(mode=0o600)
        (target / "more").mkdir(mode=0o700)
        (target / "more/part").touch(mode=0o600)

    folder = keep(tmp_path / "folder", write)
    paths = {path: path.stat().st_mode & 0o777 for path in (folder, *folder.rglob("*"))}
    assert all(mode == (0o755 if path.is_dir() else 0o644) for path, mode in paths.items())
    assert len(paths) == 4


def test_two_processes_may_make_the_same_folder(tmp_path: Path) -> None:
    def write(target: Path) -> None:
        keep(tmp_path / "model", lambda target: None)
        (target / "part").write_text("whole")

    assert keep(tmp_path / "model", write) == tmp_path / "model"
    assert [entry.name for entry in tmp_path.iterdir()] == ["model"]


def test_files_are_on_the_disk_before_they_have_their_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: set[int] = set()
    fsync, rename = os.fsync, os.rename

    def note(descriptor: int) -> None:
        fsync(descriptor)
        flushed.add(os.fstat(descriptor).st_ino)

    def check(source: Path, target: Path) -> None:
        for path in (source, *source.rglob("*")):
            assert path.stat().st_ino in flushed, path
        rename(source, target)

    def write(target: Path) -> None:
        (target / "inner").mkdir()
        (target / "inner" / "a").write_text("a")
        (target / "b").write_text("b")

    monkeypatch.setattr(os, "fsync", note)
    monkeypatch.setattr(os, "rename", check)
    folder = keep(tmp_path / "model", write)
    assert (folder / "inner" / "a").read_text() == "a"
    assert tmp_path.stat().st_ino in flushed, "the name itself"


@pytest.mark.parametrize("home", [None, "/proc"])
def test_without_a_home_that_can_be_written(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    home: str | None,
) -> None:
    without_home(monkeypatch, tmp_path, home)
    folder = cache_folder()
    assert folder.parent == tmp_path and folder.stat().st_mode & 0o777 == 0o700
    assert keep(folder / "models" / "one", lambda target: None).is_dir()
    assert cache_folder() == folder, "the next process finds it"
    prepare_cache()
    (warning,) = caplog.messages
    assert str(folder) in warning and "the next start is slow" in warning


def test_a_temporary_cache_that_others_can_write_to_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_home(monkeypatch, tmp_path, None)
    cache_folder().chmod(0o777)
    with pytest.raises(LoadError, match="set XDG_CACHE_HOME"):
        cache_folder()
    cache_folder_path = next(tmp_path.iterdir())
    cache_folder_path.rmdir()
    cache_folder_path.symlink_to(tmp_path)
    with pytest.raises(LoadError, match="set XDG_CACHE_HOME"):
        cache_folder()


def test_a_cache_folder_that_is_set_and_cannot_be_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc")
    with pytest.raises(LoadError, match="cannot write to the cache folder /proc.*XDG_CACHE_HOME"):
        keep(cache_folder() / "models" / "one", lambda target: None)


def without_home(monkeypatch: pytest.MonkeyPatch, temporary: Path, home: str | None) -> None:
    """As for a user id that nobody knows of: `home` is where it is told to be."""
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    if home is None:
        monkeypatch.delenv("HOME", raising=False)
        monkeypatch.setattr("os.getuid", lambda: 2_000_000_000)  # has no entry that names a home
    else:
        monkeypatch.setenv("HOME", home)
