"""How much memory the KV cache may take."""

from __future__ import annotations

import logging

import psutil
import torch

from tokenloom_engine.cgroup import memory_headroom

CPU_SHARE = 0.25
CUDA_SHARE = 0.9

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
    return int(CPU_SHARE * min(psutil.virtual_memory().available, memory_headroom()))
