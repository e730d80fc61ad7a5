"""Linear layers on the CPU, their weights laid out once for oneDNN.

torch's own bfloat16 linear lays out the weight anew in each call, which for a few rows takes longer
than the product itself.
"""

from __future__ import annotations

import torch


class PrepackedLinear(torch.nn.Module):
    """Computes what a bfloat16 `torch.nn.Linear` on the CPU computes."""

    def __init__(self, linear: torch.nn.Linear) -> None:
        super().__init__()
        weight = linear.weight.detach()
        self.in_features = linear.in_features
        self.out_features = linear.out_features
        # A buffer and not a parameter: opaque, neither trained nor saved.
        self.register_buffer(
            "weight", torch.ops.mkldnn._reorder_linear_weight(weight), persistent=False
        )
        self.bias = linear.bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x [..., in_features] -> [..., out_features]."""
        output: torch.Tensor = torch.ops.mkldnn._linear_pointwise(
            x, self.weight, self.bias, "none", [], ""
        )
        return output


def prepack_linears(network: torch.nn.Module) -> int:
    """Replace the linear layers where that is faster. Returns how many were replaced."""
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return 0
    count = 0
    for parent in list(network.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is torch.nn.Linear and _is_suited(child.weight):
                setattr(parent, name, PrepackedLinear(child))
                count += 1
    return count


def _is_suited(weight: torch.Tensor) -> bool:
    return weight.device.type == "cpu" and weight.dtype == torch.bfloat16
