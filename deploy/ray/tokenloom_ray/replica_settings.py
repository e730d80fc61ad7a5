"""The server's settings as a replica takes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from tokenloom_server.settings import Settings
from tokenloom_server.settings_error import one_line

ELSEWHERE = {
    "hostname": "http_options.host",
    "port": "http_options.port",
    "graceful_termination_timeout": "graceful_shutdown_timeout_s of the deployment Engine",
} | dict.fromkeys(
    (
        "max_connections",
        "max_header_bytes",
        "header_timeout",
        "body_timeout",
        "send_timeout",
        "env",
    ),
    "the HTTP proxy of Ray Serve, which listens instead of the server",
)
"""Settings of the HTTP server, and what decides in its place."""


def replica_settings(flags: Mapping[str, Any], num_cpus: int) -> Settings:
    """Return the settings of a replica that may use `num_cpus` cores; 0 is as many as there are.

    Raises ValueError for a flag that is unknown, wrong, or without effect here.
    """
    for name in flags:
        if name not in Settings.model_fields:
            raise ValueError(f"`{name}` in args is no flag of `tokenloom serve`")
        if name in ELSEWHERE:
            raise ValueError(f"`{name}` in args has no effect; see {ELSEWHERE[name]}")
    try:
        settings = Settings(**flags)
    except ValidationError as error:
        raise ValueError(one_line(error)) from None
    if num_cpus and settings.num_threads is None:
        settings = Settings(**{**flags, "num_threads": num_cpus})
    return settings
