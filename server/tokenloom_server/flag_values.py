"""How the text of a flag or of an environment variable becomes a value."""

from __future__ import annotations

import re
from collections.abc import Iterable
from ipaddress import ip_address
from pathlib import Path
from typing import get_args
from urllib.parse import urlsplit

from tokenloom_engine.constraints.backends import backend_names
from tokenloom_engine.constraints.spec import ConstraintKind
from tokenloom_server.reasoning import ReasoningTags
from tokenloom_server.tools.formats import format_names

OFF = frozenset({"", "n", "no", "f", "false", "off", "0"})
ROUTE = re.compile(r"/|(/[A-Za-z0-9\-._~!$&'()*+,;=:@]+)+")
LEVELS = {"warning": "warn", "critical": "error"}
"""Other words for levels of logs."""


def as_switch(value: object) -> object:
    """Any text is on, except TGI's words for off."""
    return value.lower() not in OFF if isinstance(value, str) else value


def as_list(value: object) -> object:
    """Split at commas: one text, or the texts of a flag that was repeated."""
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, Iterable):
        return value
    return [part.strip() for text in texts for part in str(text).split(",") if part.strip()]


def as_backends(values: tuple[str, ...]) -> dict[ConstraintKind, str]:
    """The back end of each kind, from NAME (all kinds) and KIND=NAME (one kind)."""
    backends: dict[ConstraintKind, str] = {}
    kinds = [kind for kind in get_args(ConstraintKind) if kind != "text"]
    for value in sorted(values, key=lambda value: "=" in value):
        kind, _, name = value.rpartition("=")
        if name not in backend_names():
            raise ValueError(f"`constraint_backend` must be among {backend_names()}, not {name!r}")
        if kind and kind not in kinds:
            raise ValueError(f"`constraint_backend` must be for one of {kinds}, not {kind!r}")
        backends |= {chosen: name for chosen in kinds if kind in ("", chosen)}
    return backends


def is_address(value: str) -> bool:
    """Whether this is an IP address, of version 4 or 6."""
    try:
        ip_address(value)
    except ValueError:
        return False
    return True


def as_address(value: str) -> str:
    """An IP address as it stands."""
    if not is_address(value):
        raise ValueError(f"`hostname` must be an IP address, not {value!r}")
    return value


def as_route(value: str | None) -> str | None:
    """A path that a request line can name, without parameters."""
    if value is not None and not ROUTE.fullmatch(value):
        raise ValueError(
            f"must be a path like /predict of unescaped ASCII characters, not {value!r}"
        )
    return value


def as_level(value: object) -> object:
    """A level of logs, in whatever case."""
    return LEVELS.get(value.lower(), value.lower()) if isinstance(value, str) else value


def as_quantization(value: object) -> object:
    """A quantization that is built."""
    if value not in (None, "int8"):
        raise ValueError(f"`quantize` must be 'int8', not {value!r}: no other method is built")
    return value


def as_file(value: str | None) -> str | None:
    """The path of a file that is there."""
    if value is None:
        return None
    path = Path(value).expanduser()
    if not path.is_file():
        raise ValueError(f"`tokenizer_config_path` must be a file, and there is none at {value!r}")
    return str(path)


def as_key(value: str | None) -> str | None:
    """A key that a header can hold."""
    if value is None:
        return None
    if not value.strip():
        raise ValueError("`api_key` is empty: give a key, or leave it out to serve without one")
    if value != value.strip() or not value.isprintable():
        raise ValueError("`api_key` must not hold control characters or white space at its ends")
    return value


def read_key(file: str) -> str:
    """The key in a file, without the end of its line. Raises ValueError."""
    try:
        text = Path(file).expanduser().read_text().rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ValueError(f"`api_key_file` {file!r} cannot be read: {reason}") from error
    try:
        as_key(text)
    except ValueError as error:
        raise ValueError(f"{error} (in the file of `api_key_file`, {file!r})") from None
    return text


def as_endpoint(value: str | None) -> str | None:
    """The address of a collector."""
    if value is None:
        return None
    parts = urlsplit(value)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"`otlp_endpoint` must be like http://host:4317, not {value!r}")
    return value


def as_call_format(value: str) -> str:
    """The name of a format of calls, or auto."""
    names = ["auto", *format_names()]
    if value not in names:
        raise ValueError(f"`tool_call_parser` must be among {names}, not {value!r}")
    return value


def as_reasoning(value: str) -> str:
    """What reasoning stands between."""
    try:
        ReasoningTags.parse(value)
    except ValueError as error:
        raise ValueError(f"`reasoning_parser` {error}, not {value!r}") from None
    return value
