"""Kinds of CPU that the kernels are built for."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Level:
    """A kind of CPU, and how the library for it is compiled."""

    name: str
    title: str
    """For the log."""
    needed: tuple[str, ...]
    """Instructions that the CPU must have, by their names in `torch.cpu.get_capabilities()`."""
    flags: tuple[str, ...]
    """Of the compiler."""
    tiles: tuple[str, ...] = ()
    """Instructions of AMX in the library, which runs without them as well: see tile_choice.py."""

    def runs_on(self, capabilities: Mapping[str, object]) -> bool:
        """Whether a CPU with these capabilities has all that is needed."""
        return all(capabilities.get(name) for name in self.needed)

    def has_tiles(self, capabilities: Mapping[str, object] | None = None) -> bool:
        """Return whether the library and a CPU with these capabilities, or this CPU, have AMX."""
        found = torch.cpu.get_capabilities() if capabilities is None else capabilities
        return bool(self.tiles) and all(found.get(name) for name in self.tiles)

    def arithmetic(self, dtype: torch.dtype, quantize: str | None) -> str:
        """The type of the numbers that matrix products multiply on such a CPU."""
        if quantize is not None:
            has_bytes = {"avx512_vnni", "avx_vnni", "dot"} & set(self.needed)
            return "int8" if has_bytes else "int16"
        has_bfloat16 = {"avx512_bf16", "bf16"} & set(self.needed)
        return "bfloat16" if dtype == torch.bfloat16 and has_bfloat16 else "float32"


_AVX512 = ("avx512_f", "avx512_bw", "avx512_vl", "avx512_dq")
_AVX2 = ("avx2", "fma3", "f16c", "bmi2")
X86_LEVELS = (
    Level(
        "avx512_bf16",
        "AVX-512 with bfloat16",
        ("avx512_bf16", "avx512_vnni", *_AVX512),
        # A compiler uses AMX only where the sources do.
        (
            "-march=x86-64-v4",
            "-mavx512bf16",
            "-mavx512vnni",
            "-mamx-tile",
            "-mamx-int8",
            "-mamx-bf16",
        ),
        tiles=("amx_tile", "amx_int8", "amx_bf16"),
    ),
    Level(
        "avx512_vnni",
        "AVX-512 with VNNI",
        ("avx512_vnni", *_AVX512),
        ("-march=x86-64-v4", "-mavx512vnni"),
    ),
    Level("avx512", "AVX-512", _AVX512, ("-march=x86-64-v4",)),
    Level(
        "avx2_vnni",
        "AVX2 with VNNI",
        ("avx_vnni", *_AVX2),
        ("-march=x86-64-v3", "-mavxvnni"),
    ),
    Level("avx2", "AVX2", _AVX2, ("-march=x86-64-v3",)),
    Level("baseline", "SSE2", (), ()),
)
ARM_LEVELS = (
    Level(
        "neon_bf16",
        "NEON with bfloat16 and byte dot products",
        ("dot", "bf16", "i8mm"),
        ("-march=armv8.2-a+dotprod+bf16+i8mm",),
    ),
    Level("neon_dot", "NEON with byte dot products", ("dot",), ("-march=armv8.2-a+dotprod",)),
    Level("baseline", "NEON", (), ()),
)
OTHER_LEVELS = (Level("baseline", "the compiler's vectors", (), ()),)
LEVELS = {
    "x86_64": X86_LEVELS,
    "AMD64": X86_LEVELS,
    "aarch64": ARM_LEVELS,
    "arm64": ARM_LEVELS,
}.get(platform.machine(), OTHER_LEVELS)
"""Levels of this architecture, the best first."""


def best_level(
    capabilities: Mapping[str, object] | None = None, levels: Iterable[Level] = LEVELS
) -> Level:
    """The best level that a CPU with these capabilities has; None for this CPU's."""
    found = torch.cpu.get_capabilities() if capabilities is None else capabilities
    return next(level for level in levels if level.runs_on(found))
