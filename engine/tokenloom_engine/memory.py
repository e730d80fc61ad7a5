"""How much memory the KV cache may take."""

from __future__ import annotations

from pathlib import Path

import psutil
import torch

CPU_SHARE = 0.4
CUDA_SHARE = 0.9
CGROUP = Path("/sys/fs/cgroup")


def memory_for_kv_cache(device: torch.device) -> int:
    """Bytes that are free for the KV cache once the model is loaded."""
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        return max(0, int(free - (1 - CUDA_SHARE) * total))
    return int(CPU_SHARE * min(psutil.virtual_memory().available, _cgroup_headroom()))


def _cgroup_headroom() -> float:
    """What a container's limit leaves; infinite without one."""
    try:
        limit = (CGROUP / "memory.max").read_text().strip()
        used = int((CGROUP / "memory.current").read_text())
    except (OSError, ValueError):
        return float("inf")
    return float("inf") if limit == "max" else max(0, int(limit) - used)
