"""The environment's variables: those that are settings, and those of libraries.

The only place that reads and sets them.
"""

from __future__ import annotations

import os
from typing import Any

import platformdirs
from pydantic_settings import EnvSettingsSource

from tokenloom_engine.cache import cache_folder
from tokenloom_server.flag_values import as_switch, is_address

OTHER_NAMES = {
    "model_id": "HF_MODEL_ID",
    "revision": "HF_MODEL_REVISION",
    "num_shard": "SM_NUM_GPUS",
    "quantize": "HF_MODEL_QUANTIZE",
    "trust_remote_code": "HF_MODEL_TRUST_REMOTE_CODE",
    "predict_route": "AIP_PREDICT_ROUTE",
    "health_route": "AIP_HEALTH_ROUTE",
}
"""Variables of SageMaker and Vertex AI; that of the setting's own name outranks them."""
PLATFORM_PORTS = ("AIP_HTTP_PORT", "SAGEMAKER_BIND_TO_PORT")
"""Ports that Vertex AI and SageMaker assign. They outrank PORT, which an image sets."""
NO_VARIABLE = frozenset({"env"})
"""Settings that are flags alone: ENV is often set, and for other ends."""
TGI_ATTENTION = frozenset({"paged", "flashdecoding", "flashdecoding-ipex", "flashinfer"})
"""What TGI's variable ATTENTION names."""


class Environment(EnvSettingsSource):
    """The variable of each setting, and those that mean a setting under another name.

    Without what is not meant for us: HOSTNAME where it is a name (containers set it to their
    own), and ATTENTION where it names an implementation of TGI's.
    """

    def __call__(self) -> dict[str, Any]:
        values = super().__call__()
        for field in NO_VARIABLE:
            values.pop(field, None)
        if ignored_hostname() is not None:
            values.pop("hostname", None)
        if values.get("attention") in TGI_ATTENTION:
            del values["attention"]
        for field, name in OTHER_NAMES.items():
            if text := os.environ.get(name):
                values.setdefault(field, text)
        if values.get("num_shard") == os.environ.get("SM_NUM_GPUS") == "0":  # no GPUs
            del values["num_shard"]
        for name in PLATFORM_PORTS:
            if port := os.environ.get(name):
                values["port"] = port
        # Whoever sets a key to nothing means to have one: it is refused, not left out.
        for field in ("api_key", "api_key_file"):
            if os.environ.get(field.upper()) == "":
                values.setdefault(field, "")
        if caching := os.environ.get("PREFIX_CACHING"):
            values.setdefault("disable_prefix_caching", not as_switch(caching))
        return values


def ignored_hostname() -> str | None:
    """HOSTNAME, where it is set to something else than an IP address."""
    hostname = os.environ.get("HOSTNAME")
    return None if not hostname or is_address(hostname) else hostname


def model_storage() -> str | None:
    """Vertex AI's address of a model in Cloud Storage, which is not read here."""
    return os.environ.get("AIP_STORAGE_URI") or None


def ignored_variables() -> list[str]:
    """TGI's and Vertex AI's variables that are set and change nothing here: one line each."""
    lines = []
    if uri := model_storage():
        lines.append(f"AIP_STORAGE_URI={uri} has no effect: models are not read from Cloud Storage")
    if (attention := os.environ.get("ATTENTION")) in TGI_ATTENTION:
        lines.append(f"ATTENTION={attention} has no effect: --attention names what there is here")
    for name in ("PREFILL_CHUNKING", "USE_FLASH_ATTENTION"):
        text = os.environ.get(name)
        if text and not as_switch(text):
            lines.append(f"{name}={text} has no effect: there is no other way here")
    return lines


def take_notify_socket() -> str | None:
    """Return the service manager's socket, once: processes that we start do not inherit it."""
    address = os.environ.pop("NOTIFY_SOCKET", "")
    return address if address[:1] in ("/", "@") else None


def take_watchdog_seconds() -> float | None:
    """Return how long the service manager waits for a sign of progress from us, once."""
    usec, pid = os.environ.pop("WATCHDOG_USEC", ""), os.environ.pop("WATCHDOG_PID", "")
    if not usec.isdecimal() or int(usec) == 0 or pid not in ("", str(os.getpid())):
        return None
    return int(usec) / 1e6


def prepare_hub(cache: str | None) -> None:
    """Tell the Hub's library, here and in the engine process, what TGI takes from elsewhere.

    It reads its variables when it is loaded. Without a home that can be written to, it keeps its
    files where ours are. Raises LoadError if there is no such place.
    """
    if cache is not None:
        os.environ["HF_HUB_CACHE"] = cache
    if token := os.environ.get("HF_API_TOKEN"):
        os.environ.setdefault("HF_TOKEN", token)
    if not any(os.environ.get(name) for name in ("HF_HOME", "XDG_CACHE_HOME")):
        try:
            platformdirs.user_cache_path("huggingface").mkdir(parents=True, exist_ok=True)
        except (OSError, RuntimeError):
            os.environ["HF_HOME"] = str(cache_folder() / "huggingface")
