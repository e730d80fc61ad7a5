"""Linear layers on the CPU, their weights laid out once for the product.

torch's own bfloat16 linear lays out the weight anew in each call, which for a few rows takes longer
than the product itself.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from tokenloom_engine.errors import LoadError
from tokenloom_engine.kernels.library import Kernels
from tokenloom_engine.kernels.packing import PackedWeight, is_quantizable, is_suited
from tokenloom_engine.throughput import LinearProduct

HEADS = ("lm_head", "embed_out")
"""Names of the layer that logits come from."""
INPUTS_TOGETHER = 64
"""Inputs that share a scale where weights are bytes.

A few inputs are far larger than the others, and cost these their accuracy only within such a group.
"""


class PackedLinear(torch.nn.Module):
    """A `torch.nn.Linear` by our own kernel: a row's result does not depend on the others."""

    def __init__(self, weight: PackedWeight, kernels: Kernels) -> None:
        super().__init__()
        self.in_features = weight.num_inputs
        self.out_features = weight.num_outputs
        self.weight = weight.packed  # some models ask for its dtype or device
        self._packed = weight
        self._kernels = kernels

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x [..., in_features] -> [..., out_features]."""
        return self._packed.multiply(self._kernels, x)

    def as_product(self) -> LinearProduct:
        """The product with its weight, to measure it."""
        return self._packed.as_product(self._kernels)


class PrepackedLinear(torch.nn.Module):
    """A bfloat16 `torch.nn.Linear` by oneDNN, where our kernels are not to be had."""

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


def pack_linears(network: torch.nn.Module, kernels: Kernels, quantize: str | None = None) -> int:
    """Replace the linear layers that our kernels compute. Returns how many were replaced.

    Raises LoadError if `quantize` has none to quantize, or the head alone.
    """
    num_quantized = 0

    def replacement(name: str, linear: torch.nn.Linear) -> torch.nn.Module | None:
        if not is_suited(linear.weight):
            return None
        nonlocal num_quantized
        weight = pack_linear(linear, quantize)
        num_quantized += weight.scales is not None and name not in HEADS
        return PackedLinear(weight, kernels)

    count = _replace(network, replacement)
    if quantize is not None and not num_quantized:
        raise LoadError(f"`quantize` {quantize} finds no linear layer to quantize in this model")
    return count


def pack_linear(linear: torch.nn.Linear, quantize: str | None) -> PackedWeight:
    """The layer's weight, in bytes if `quantize` is int8 and the layer bears it."""
    if quantize == "int8" and is_quantizable(linear.weight):
        return PackedWeight.quantize(linear.weight, linear.bias, INPUTS_TOGETHER)
    return PackedWeight.pack(linear.weight, linear.bias)


def linear_products(network: torch.nn.Module) -> list[LinearProduct]:
    """The linear layers of a network, whichever way they are computed."""
    return [
        product
        for module in network.modules()
        if (product := _as_product(module)) is not None and product.num_weights
    ]


def _as_product(module: torch.nn.Module) -> LinearProduct | None:
    if isinstance(module, PackedLinear):
        return module.as_product()
    if isinstance(module, PrepackedLinear) or type(module) is torch.nn.Linear:
        weight = module.weight
        assert isinstance(weight, torch.Tensor)
        inputs, outputs = module.in_features, module.out_features
        num_bytes = inputs * outputs * weight.dtype.itemsize
        return LinearProduct(module, inputs, outputs, num_bytes, weight.dtype)
    return None


def prepack_linears(network: torch.nn.Module) -> int:
    """Replace the linear layers where oneDNN is faster. Returns how many were replaced."""
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return 0

    def replacement(name: str, linear: torch.nn.Linear) -> torch.nn.Module | None:
        is_cpu = linear.weight.device.type == "cpu"
        is_bfloat16 = linear.weight.dtype == torch.bfloat16
        return PrepackedLinear(linear) if is_cpu and is_bfloat16 else None

    return _replace(network, replacement)


def _replace(
    network: torch.nn.Module,
    replacement: Callable[[str, torch.nn.Linear], torch.nn.Module | None],
) -> int:
    count = 0
    for parent in list(network.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is torch.nn.Linear:
                new = replacement(name, child)
                if new is not None:
                    setattr(parent, name, new)
                    count += 1
    return count
