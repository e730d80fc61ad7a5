"""How much memory the KV cache may take."""

from __future__ import annotations

import logging
from pathlib import Path

import psutil
import torch

CPU_SHARE = 0.25
CUDA_SHARE = 0.9
CGROUP = Path("/sys/fs/cgroup")
CGROUP_FILES = (
    (CGROUP / "memory.max", CGROUP / "memory.current"),
    (CGROUP / "memory/memory.limit_in_bytes", CGROUP / "memory/memory.usage_in_bytes"),
)
"""Limit and usage, of version 2 and of version 1."""


logger = logging.getLogger(__name__)


def limit_cuda_memory(fraction: float) -> None:
    """Let this process take no more than this share of the GPU's memory."""
    if fraction < 1 and torch.cuda.is_available():
        torch.cuda.set_per_process_memory_fraction(fraction)
    elif fraction < 1:
        logger.warning("--cuda-memory-fraction has no effect: there is no GPU")


def memory_for_kv_cache(device: torch.device) -> int:
    """Bytes that are free for the KV cache once the model is loaded."""
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        allowed = total * torch.cuda.get_per_process_memory_fraction(device)
        left = allowed - torch.cuda.memory_reserved(device)
        return max(0, int(min(free, left) - (1 - CUDA_SHARE) * total))
    return int(CPU_SHARE * min(psutil.virtual_memory().available, _cgroup_headroom()))


def _cgroup_headroom() -> float:
    """What a container's limit leaves; infinite without one."""
    for limit_file, usage_file in CGROUP_FILES:
        try:
            limit = limit_file.read_text().strip()
            used = int(usage_file.read_text())
        except (OSError, ValueError):
            continue
        # Version 2 says "max" for none, version 1 a number beyond any memory.
        return float("inf") if limit == "max" else max(0, int(limit) - used)
    return float("inf")
