"""The sums that log-probabilities are read with, by our own kernel."""

from __future__ import annotations

from collections.abc import Sequence as Seq

import torch

from tokenloom_engine.kernels.library import Kernels
from tokenloom_engine.kernels.structs import LogSumExp


def log_sum_exp(kernels: Kernels, logits: torch.Tensor, rows: Seq[int]) -> torch.Tensor:
    """float32 [len(rows)]: that of each of these rows of the logits, [N, V] in float32.

    -inf where a row has nothing else; what is not a number counts for nothing.
    """
    assert logits.dtype == torch.float32 and logits.stride(1) == 1
    stride = logits.stride(0) * logits.element_size()
    pointers = torch.tensor(rows, dtype=torch.int64) * stride + logits.data_ptr()
    results = torch.empty(len(rows), dtype=torch.float32)
    kernels.log_sum_exp(
        LogSumExp(
            pointers.data_ptr(), results.data_ptr(), logits.shape[1], len(rows), kernels.threads
        )
    )
    return results
