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

VISIBLE_GPUS = "CUDA_VISIBLE_DEVICES"
"""Indices or UUIDs, by commas; without the variable all GPUs are visible."""


def child_environment(*, downloads: bool = False, gpus: range | None = None) -> dict[str, str]:
    """Return our environment without variables that hold a secret by their name or value.

    `downloads`: whether the process fetches a model, and needs the Hub's token and the proxy.
    `gpus`: the only ones that the process may see, counted among those that we may see.
    """
    environment = {
        name: value
        for name, value in os.environ.items()
        if not (SECRET_NAME.search(name) or SECRET_VALUE.search(value))
        or (downloads and DOWNLOAD_NAME.fullmatch(name))
    }
    if gpus is not None:
        visible = os.environ.get(VISIBLE_GPUS)
        all_gpus = visible.split(",") if visible is not None else [str(i) for i in range(gpus.stop)]
        environment[VISIBLE_GPUS] = ",".join(all_gpus[gpus.start : gpus.stop])
    return environment
