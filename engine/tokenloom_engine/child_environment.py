"""The environment of the processes that we start: without the secrets of ours."""

from __future__ import annotations

import os
import re

SECRET_NAME = re.compile(
    r"(TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?|APIKEY|_KEY|OTLP_(\w+_)?HEADERS)$",
    re.IGNORECASE,
)
SECRET_VALUE = re.compile(r"://[^/@\s]*:[^/@\s]+@")
"""A URL with a password."""
DOWNLOAD_NAME = re.compile(r"HF_\w+|HUGGING_?FACE_\w+|\w+_PROXY", re.IGNORECASE)
"""Variables that a download from the Hub needs, secret or not."""


def child_environment(*, downloads: bool = False) -> dict[str, str]:
    """Return our environment without variables that hold a secret by their name or value.

    `downloads`: whether the process fetches a model, and needs the Hub's token and the proxy.
    """
    return {
        name: value
        for name, value in os.environ.items()
        if not (SECRET_NAME.search(name) or SECRET_VALUE.search(value))
        or (downloads and DOWNLOAD_NAME.fullmatch(name))
    }
