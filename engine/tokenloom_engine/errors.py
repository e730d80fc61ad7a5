"""Errors that the operator sees."""

from __future__ import annotations

MAX_CHARACTERS = 500
"""Of another library's message in one of ours."""


class LoadError(Exception):
    """The model cannot be served. The message is one line: what is wrong, and what to do."""


class UnfaithfulError(LoadError):
    """The engine would compute something else than the model's own modules do."""


class DeviceError(Exception):
    """The device computes nothing any more for this process, which must end."""


def one_line(error: BaseException) -> str:
    """Join the lines of an error's message and cut what is too long for a log's line."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= MAX_CHARACTERS else f"{text[:MAX_CHARACTERS]}…"
