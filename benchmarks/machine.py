"""How fast the machine is just now: what to relate figures of different machines and days to."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

ROWS = 1024
WIDTH = 2048
MEMORY_BYTES = 1 << 29
REPEATS = 7


def machine_figures() -> dict[str, Any]:
    """CPUs, the load of the last minute, a bfloat16 matrix product, and reading memory."""
    cpus = os.cpu_count()
    if hasattr(os, "sched_getaffinity"):
        cpus = len(os.sched_getaffinity(0))
    return {
        "cpus": cpus,
        "load_average": round(os.getloadavg()[0], 2),
        "bf16_matmul_gflops": round(_matmul_gflops(torch.bfloat16)),
        "memory_read_gb_per_second": round(_read_gb_per_second(), 1),
    }


def computing_gflops(dtype: str, *, is_quantized: bool) -> float:
    """The fastest matrix product of torch's that a model of this dtype could be computed with.

    Numbers of 16 bits may be multiplied as float32, which is faster where the CPU has no products
    of them; bytes may be multiplied as either.
    """
    names = {"float32", dtype} | ({"int8"} if is_quantized else set())
    return max(_matmul_gflops(getattr(torch, name)) for name in names)


def _matmul_gflops(dtype: torch.dtype) -> float:
    left = torch.ones(ROWS, WIDTH, dtype=dtype)
    right = torch.ones(WIDTH, WIDTH, dtype=dtype)
    is_bytes = dtype == torch.int8
    multiply = torch._int_mm if is_bytes else torch.matmul  # pyright: ignore[reportPrivateImportUsage]
    seconds = _median_seconds(lambda: multiply(left, right))
    return 2 * ROWS * WIDTH * WIDTH / seconds / 1e9


def _read_gb_per_second() -> float:
    memory = torch.ones(MEMORY_BYTES // 8, dtype=torch.int64)
    return MEMORY_BYTES / _median_seconds(memory.sum) / 1e9


def _median_seconds(work: Callable[[], object]) -> float:
    work()
    seconds = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)
