"""The tensors of a checkpoint's files, as the files describe them: without their values."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from safetensors import safe_open
from transformers.utils import (
    SAFE_WEIGHTS_INDEX_NAME,
    SAFE_WEIGHTS_NAME,
    WEIGHTS_INDEX_NAME,
    WEIGHTS_NAME,
)

INTEGERS = frozenset({"I8", "U8", "int8", "uint8"})
FLOATS = ("F8_", "float8_")
"""Dtypes of 8 bits, as safetensors and torch name them; BOOL is none of them."""
WEIGHT_SCALES = frozenset({"scale", "scales", "qscale_weight", "SCB"})
"""Names of the scale of a `weight`, besides those that begin with `weight_scale`."""


def read_dtypes(folder: Path) -> dict[str, str]:
    """The dtype of each tensor by its name, of the files that transformers loads from a folder."""
    dtypes: dict[str, str] = {}
    for file in _weight_files(folder):
        if file.suffix == ".safetensors":
            with safe_open(file, framework="pt") as stored:
                for name in stored.keys():  # noqa: SIM118 - it is not iterable
                    dtypes[name] = stored.get_slice(name).get_dtype()
        else:
            tensors = torch.load(file, map_location="meta", weights_only=True)
            for name, tensor in tensors.items():
                dtypes[name] = str(tensor.dtype).removeprefix("torch.")
    return dtypes


def quantized_without_scale(dtypes: Mapping[str, str]) -> list[str]:
    """The tensors of 8-bit numbers that have no tensor beside them to scale them by."""
    siblings: defaultdict[str, list[str]] = defaultdict(list)
    for name in dtypes:
        module, _, own = name.rpartition(".")
        siblings[module].append(own)
    unscaled = []
    for name, dtype in dtypes.items():
        module, _, own = name.rpartition(".")
        if (dtype not in INTEGERS and not dtype.startswith(FLOATS)) or "scale" in own:
            continue
        prefix = f"{own.removesuffix('_blocks')}_scale"
        has_scale = any(
            sibling.startswith(prefix) or (own == "weight" and sibling in WEIGHT_SCALES)
            for sibling in siblings[module]
        )
        if not has_scale and name not in siblings:  # bitsandbytes has `weight.absmax`
            unscaled.append(name)
    return unscaled


def _weight_files(folder: Path) -> Iterator[Path]:
    """The files, chosen as transformers does."""
    for whole, index in (
        (SAFE_WEIGHTS_NAME, SAFE_WEIGHTS_INDEX_NAME),
        (WEIGHTS_NAME, WEIGHTS_INDEX_NAME),
    ):
        if (folder / whole).is_file():
            yield folder / whole
            return
        if (folder / index).is_file():
            weight_map = json.loads((folder / index).read_text())["weight_map"]
            yield from (folder / name for name in sorted(set(weight_map.values())))
            return
