"""Weights laid out for the kernels' matrix products."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from tokenloom_engine.kernels.library import LANES, STORAGE, Kernels
from tokenloom_engine.kernels.structs import Gemm, Int8Gemm, Linear
from tokenloom_engine.throughput import LinearProduct

PANEL = 32
"""Outputs that lie side by side; see csrc/gemm.cpp."""


@dataclass(frozen=True, slots=True)
class PackedWeight:
    """A weight [num_outputs, num_inputs] and its bias."""

    packed: torch.Tensor
    """[num_outputs / 32, num_inputs / p, 32, p], where p numbers take four bytes."""
    bias: torch.Tensor | None
    num_inputs: int
    num_outputs: int
    dtype: torch.dtype
    """Of inputs and results."""
    scales: torch.Tensor | None = None
    """float32 [num_outputs, rounded up to 32]: then `packed` is of bytes, see csrc/int8_gemm.cpp"""
    shifts: torch.Tensor | None = None
    """int32 [num_inputs / group, num_outputs rounded up to 32], where there are scales."""
    group: int = 0
    """Inputs of a row that share a scale, where there are scales."""

    @classmethod
    def pack(cls, weight: torch.Tensor, bias: torch.Tensor | None) -> PackedWeight:
        """Lay out a weight [outputs, inputs]; it must be `is_suited`."""
        outputs, inputs = weight.shape
        packed = _panels(weight.detach(), 4 // weight.dtype.itemsize)
        return cls(packed, _contiguous(bias), inputs, outputs, weight.dtype)

    @classmethod
    def quantize(
        cls, weight: torch.Tensor, bias: torch.Tensor | None, most_inputs: int | None = None
    ) -> PackedWeight:
        """The same as bytes, with one scale an output; it must be `is_quantizable`.

        So many inputs of a row at most will share a scale; None for all of them.
        """
        outputs, inputs = weight.shape
        group = _group(inputs, most_inputs or inputs)
        whole = weight.detach().float()
        scales = whole.abs().amax(dim=1).clamp(min=1e-8) / 127
        levels = (whole / scales.unsqueeze(1)).round().clamp(-127, 127)
        return cls(
            _panels(levels.to(torch.int8), 4),
            _contiguous(bias),
            inputs,
            outputs,
            weight.dtype,
            _padded(scales),
            _padded(-128 * levels.view(outputs, -1, group).sum(dim=2).to(torch.int32).T),
            group,
        )

    @classmethod
    def filled(cls, outputs: int, inputs: int, dtype: torch.dtype) -> PackedWeight:
        """A weight whose numbers are all the same: to measure products of this shape."""
        padded = outputs + -outputs % PANEL
        packed = torch.full((padded * inputs,), 0.01, dtype=dtype)
        return cls(packed, None, inputs, outputs, dtype)

    def as_product(self, kernels: Kernels) -> LinearProduct:
        """The product with this weight, to measure it."""
        return LinearProduct(
            lambda x: self.multiply(kernels, x),
            self.num_inputs,
            self.num_outputs,
            self.packed.nbytes,
            self.dtype,
        )

    def multiply(
        self, kernels: Kernels, x: torch.Tensor, result_dtype: torch.dtype | None = None
    ) -> torch.Tensor:
        """x [..., num_inputs] -> [..., num_outputs], of x's dtype or of float32."""
        rows = x.reshape(-1, self.num_inputs).contiguous()
        result = x.new_empty(rows.shape[0], self.num_outputs, dtype=result_dtype or x.dtype)
        if self.scales is None:
            kernels.gemm(
                Gemm(
                    rows.data_ptr(),
                    self.packed.data_ptr(),
                    None if self.bias is None else self.bias.data_ptr(),
                    result.data_ptr(),
                    rows.shape[0],
                    self.num_inputs,
                    self.num_outputs,
                    STORAGE[self.dtype],
                    result.dtype is torch.float32,
                    kernels.threads,
                    kernels.tiles.bfloat16,
                )
            )
        else:
            self._multiply_bytes(kernels, rows, result)
        return result.view(*x.shape[:-1], self.num_outputs)

    def _multiply_bytes(self, kernels: Kernels, rows: torch.Tensor, result: torch.Tensor) -> None:
        assert self.scales is not None and self.shifts is not None
        quantized = torch.empty(rows.shape, dtype=torch.int16)
        row_scales = torch.empty(rows.shape[0], self.num_inputs // self.group)
        kernels.int8_gemm(
            Int8Gemm(
                rows.data_ptr(),
                self.packed.data_ptr(),
                self.scales.data_ptr(),
                self.shifts.data_ptr(),
                None if self.bias is None else self.bias.data_ptr(),
                result.data_ptr(),
                quantized.data_ptr(),
                row_scales.data_ptr(),
                rows.shape[0],
                self.num_inputs,
                self.num_outputs,
                self.group,
                STORAGE[self.dtype],
                result.dtype is torch.float32,
                kernels.threads,
                kernels.tiles.int8,
            )
        )

    def as_struct(self) -> Linear:
        """For kernels that run several products; points to this weight's tensors."""

        def pointer(tensor: torch.Tensor | None) -> int | None:
            return None if tensor is None else tensor.data_ptr()

        return Linear(
            self.packed.data_ptr(),
            pointer(self.bias),
            pointer(self.scales),
            pointer(self.shifts),
            self.num_inputs,
            self.num_outputs,
            self.group,
        )


def is_suited(weight: torch.Tensor) -> bool:
    """Whether the kernels multiply with such a weight."""
    if weight.device.type != "cpu" or weight.dtype not in STORAGE or weight.dim() != 2:
        return False
    return weight.shape[1] % (4 // weight.dtype.itemsize) == 0


def is_quantizable(weight: torch.Tensor) -> bool:
    """Whether the kernels multiply with such a weight in bytes."""
    return is_suited(weight) and weight.shape[1] % LANES == 0


def _panels(weight: torch.Tensor, per_word: int) -> torch.Tensor:
    outputs, inputs = weight.shape
    missing = -outputs % PANEL
    if missing:
        weight = torch.cat([weight, weight.new_zeros(missing, inputs)])
    panels = weight.view(-1, PANEL, inputs // per_word, per_word)
    return panels.permute(0, 2, 1, 3).contiguous()


def _group(inputs: int, most: int) -> int:
    """How many inputs share a scale: what divides them and is a multiple of what kernels load."""
    return max(n for n in range(LANES, max(most, LANES) + 1, LANES) if inputs % n == 0)


def _padded(values: torch.Tensor) -> torch.Tensor:
    """[..., outputs], with zeros up to whole panels."""
    return torch.nn.functional.pad(values, (0, -values.shape[-1] % PANEL)).contiguous()


def _contiguous(bias: torch.Tensor | None) -> torch.Tensor | None:
    return None if bias is None else bias.detach().contiguous()
