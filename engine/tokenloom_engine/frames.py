"""Messages in a stream of bytes: each stands behind its length."""

from __future__ import annotations

from collections.abc import Iterator

LENGTH_BYTES = 4


class FrameBuffer:
    """Cuts a stream of bytes into the messages that `framed` put in it."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yields the messages that are whole now."""
        self._bytes += data
        while len(self._bytes) >= LENGTH_BYTES:
            end = LENGTH_BYTES + int.from_bytes(self._bytes[:LENGTH_BYTES], "little")
            if len(self._bytes) < end:
                return
            message = bytes(self._bytes[LENGTH_BYTES:end])
            del self._bytes[:end]
            yield message


def framed(message: bytes) -> bytes:
    """The message behind its length."""
    return len(message).to_bytes(LENGTH_BYTES, "little") + message
