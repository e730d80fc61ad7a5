"""transformers' models from files, with every tensor that the model has and the files should.

transformers initializes a tensor at random where a checkpoint lacks it, which suits training. Here
that is an error.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from transformers import AutoModelForCausalLM, PreTrainedModel

from tokenloom_engine.errors import LoadError
from tokenloom_engine.stored_tensors import quantized_without_scale, read_dtypes

logger = logging.getLogger(__name__)

MAX_NAMES = 8
"""Tensors that a message names; of more it gives the number."""
INCOMPLETE = "the files are incomplete, or config.json describes another model"


def load_pretrained(path: Path, **options: Any) -> PreTrainedModel:  # noqa: ANN401 - transformers'
    """Load a model from a local folder, or from a GGUF file in it (`gguf_file`).

    `options` are those of `from_pretrained`. Tensors of the files that the model does not use are
    logged. Raises LoadError if a tensor is absent, has another shape, or is quantized and has no
    scale; and what `from_pretrained` raises.
    """
    report = _LoadReport()
    library = logging.getLogger("transformers.modeling_utils")
    library.addFilter(report)
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            path, output_loading_info=True, ignore_mismatched_sizes=True, **options
        )
    except RuntimeError as error:
        if names := report.names("CONVERSION"):
            raise LoadError(
                f"the stored parts of {_listing(names)} do not fit together: {INCOMPLETE}"
            ) from error
        raise
    finally:
        library.removeFilter(report)
    network: PreTrainedModel = loaded[0]
    info: dict[str, Any] = loaded[1]
    _check(network, info)
    if "gguf_file" not in options:
        _check_scales(network, path, info["unexpected_keys"])
    if unexpected := info["unexpected_keys"]:
        logger.warning("The model does not use %s of its files", _listing(unexpected))
    return network


def _check(network: PreTrainedModel, info: dict[str, Any]) -> None:
    if missing := info["missing_keys"]:
        remedy = INCOMPLETE
        if set(missing) == {"lm_head.weight"}:
            remedy += (
                " (`tie_word_embeddings` must be true if the output layer is the input embeddings)"
            )
        raise LoadError(f"its files lack {_listing(missing)}: {remedy}")
    if mismatched := info["mismatched_keys"]:
        shapes = [
            f"{name} ({list(stored)} instead of {list(expected)})"
            for name, stored, expected in mismatched
        ]
        raise LoadError(f"shapes differ from config.json's: {_listing(shapes)}: {INCOMPLETE}")


def _check_scales(network: PreTrainedModel, path: Path, unexpected: Iterable[str]) -> None:
    """Numbers of 8 bits are weights divided by a scale, which the model must use as well."""
    ignored = [re.escape(name) + "$" for name in unexpected]
    ignored += network._keys_to_ignore_on_load_unexpected or ()
    unused = re.compile("|".join(f"({pattern})" for pattern in ignored) or r"(?!)")
    dtypes = read_dtypes(path)
    used = {name: dtype for name, dtype in dtypes.items() if not unused.search(name)}
    if names := quantized_without_scale(used):
        raise LoadError(
            f"no scale is applied to {_listing(names)} of 8-bit numbers: the files lack it, or "
            "`quantization_config` in config.json does not describe it"
        )


def _listing(names: Iterable[str]) -> str:
    """The tensors by name, in one line."""
    ordered = sorted(names)
    noun = "tensor" if len(ordered) == 1 else f"{len(ordered)} tensors"
    more = f" and {len(ordered) - MAX_NAMES} more" if len(ordered) > MAX_NAMES else ""
    return f"{noun} {', '.join(ordered[:MAX_NAMES])}{more}"


class _LoadReport(logging.Filter):
    """Keeps transformers' table of problems out of the log, and remembers it.

    The table alone names the tensors whose conversion failed.
    """

    def __init__(self) -> None:
        super().__init__()
        self._text = ""

    def filter(self, record: logging.LogRecord) -> bool:
        message = record.getMessage()
        if "LOAD REPORT" not in message:
            return True
        self._text = re.sub(r"\x1b\[[0-9;]*m", "", message)
        return False

    def names(self, status: str) -> list[str]:
        """The tensors of this status."""
        rows = (line.split("|") for line in self._text.splitlines())
        return [row[0].strip() for row in rows if len(row) > 1 and row[1].strip() == status]
