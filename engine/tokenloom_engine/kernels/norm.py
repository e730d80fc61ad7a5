"""RMS norms by our own kernel."""

from __future__ import annotations

import torch

from tokenloom_engine.kernels.library import LANES, STORAGE, Kernels
from tokenloom_engine.kernels.structs import RmsNorm

PLAIN = frozenset({"LlamaRMSNorm", "MistralRMSNorm", "Phi3RMSNorm", "Qwen2RMSNorm", "Qwen3RMSNorm"})
"""transformers' classes that compute x / rms(x), rounded, times the weight."""


class KernelRmsNorm(torch.nn.Module):
    """What a module of one of the `PLAIN` classes computes."""

    def __init__(self, weight: torch.Tensor, epsilon: float, kernels: Kernels) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(weight.detach().contiguous(), requires_grad=False)
        self.variance_epsilon = epsilon
        self._kernels = kernels

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x [..., width] -> the same shape."""
        x = x.contiguous()
        width = x.shape[-1]
        result = torch.empty_like(x)
        self._kernels.rms_norm(
            RmsNorm(
                x.data_ptr(),
                None,
                self.weight.data_ptr(),
                result.data_ptr(),
                x.numel() // width,
                width,
                self.variance_epsilon,
                STORAGE[x.dtype],
                self._kernels.threads,
            )
        )
        return result


def replace_norms(network: torch.nn.Module, kernels: Kernels) -> int:
    """Replace the RMS norms that our kernel computes. Returns how many were replaced."""
    count = 0
    for parent in list(network.modules()):
        for name, child in list(parent.named_children()):
            if is_plain_norm(child):
                weight, epsilon = child.weight, child.variance_epsilon
                assert isinstance(weight, torch.Tensor) and isinstance(epsilon, float)
                setattr(parent, name, KernelRmsNorm(weight, epsilon, kernels))
                count += 1
    return count


def is_plain_norm(module: torch.nn.Module) -> bool:
    """Whether our kernel computes what this module does."""
    if type(module).__name__ not in PLAIN:
        return False
    weight = module.weight
    assert isinstance(weight, torch.Tensor)
    is_suited = weight.device.type == "cpu" and weight.dtype in STORAGE
    return is_suited and len(weight) % LANES == 0
