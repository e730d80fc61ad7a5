"""The output of a batch: a line at a time, so that an interrupted run can go on."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import msgspec


class OutputError(Exception):
    """The file cannot be this batch's output. The message is one line for the operator."""


class DoneLine(msgspec.Struct):
    """What tells which request a line of the output belongs to."""

    line: int
    custom_id: str | None = None


class BatchOutput:
    """Appends lines as requests finish, in any order; at the end they are put in order."""

    def __init__(self, path: Path, stream: BinaryIO, done: dict[int, str | None]) -> None:
        self._path = path
        self._stream = stream
        self.done = done
        """The input's lines that have their answer, with their `custom_id`s."""

    @classmethod
    @contextmanager
    def opened(cls, path: Path, input: Path) -> Iterator[BatchOutput]:
        """Open a file, new or left behind by a run that was interrupted.

        Its last line is dropped if it was not written to its end. Raises OutputError.
        """
        if path.resolve() == input.resolve():
            raise OutputError("the output cannot be the input")
        try:
            stream = path.open("a+b")
        except OSError as error:
            raise OutputError(f"cannot write {path}: {error.strerror}") from error
        with stream:
            yield cls(path, stream, _read(path, stream))

    def add(self, number: int, custom_id: str | None, line: bytes) -> None:
        """Write the answer to the input's line of this number."""
        self._stream.write(line)
        self._stream.flush()
        self.done[number] = custom_id

    def put_in_order(self) -> None:
        """Sort the lines as the input has them. The file is whole at any time."""
        places = sorted(_places(self._stream))
        if [place for _, place, _ in places] == sorted(place for _, place, _ in places):
            return
        temporary = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        with temporary.open("wb") as sorted_stream:
            for _, place, length in places:
                self._stream.seek(place)
                sorted_stream.write(self._stream.read(length))
        temporary.replace(self._path)


def _read(path: Path, stream: BinaryIO) -> dict[int, str | None]:
    """What is done already; a torn last line is cut off."""
    stream.seek(0)
    done: dict[int, str | None] = {}
    whole = 0
    for text in stream:
        if not text.endswith(b"\n"):
            break
        try:
            line = msgspec.json.decode(text, type=DoneLine)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise OutputError(
                f"{path} has a line that is not a batch's output; name another file"
            ) from error
        done[line.line] = line.custom_id
        whole += len(text)
    stream.truncate(whole)
    return done


def _places(stream: BinaryIO) -> Iterator[tuple[int, int, int]]:
    """Each line's number, place and length."""
    stream.seek(0)
    place = 0
    for text in stream:
        yield msgspec.json.decode(text, type=DoneLine).line, place, len(text)
        place += len(text)
