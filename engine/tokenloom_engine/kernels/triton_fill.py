"""Bitmasks applied on a GPU by one kernel. Triton comes with torch's wheels for GPUs alone."""

from __future__ import annotations

import torch
import triton  # type: ignore[import-not-found, unused-ignore]  # pyright: ignore
import triton.language as tl  # type: ignore[import-not-found, unused-ignore]  # pyright: ignore

TOKENS = 1024
"""That one program looks at."""


def fill_forbidden(scores: torch.Tensor, rows: torch.Tensor, words: torch.Tensor) -> None:
    """-inf, in place, in scores[rows] for tokens whose bit is 0.

    scores float32 [N, V], each row contiguous; rows int64 [R]; words int32 [R, ceil(V / 32)].
    """
    vocab_size = scores.shape[1]
    assert 32 * words.shape[1] >= vocab_size
    grid = len(rows), triton.cdiv(vocab_size, TOKENS)
    _fill[grid](  # pyright: ignore[reportIndexIssue]
        scores, rows, words, scores.stride(0), words.shape[1], vocab_size, TOKENS
    )


# Triton reads the source and knows of annotations none but constexpr.
@triton.jit(do_not_specialize=["stride", "num_words", "vocab_size"])  # type: ignore[untyped-decorator, unused-ignore]
def _fill(scores, rows, words, stride, num_words, vocab_size, tokens: tl.constexpr):  # type: ignore[no-untyped-def, unused-ignore]  # noqa: ANN001, ANN202
    row = tl.program_id(0)
    token = tl.program_id(1) * tokens + tl.arange(0, tokens)
    is_token = token < vocab_size
    word = tl.load(words + row * num_words + token // 32, mask=is_token, other=-1)
    is_forbidden = ((word >> (token % 32)) & 1) == 0
    place = tl.load(rows + row) * stride + token
    tl.store(scores + place, float("-inf"), mask=is_token & is_forbidden)
