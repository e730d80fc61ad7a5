"""Paged attention: packed rows of any kind, against a softmax in float64."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
import torch

from tokenloom_engine.attention.base import AttentionOptions, LayerSpec
from tokenloom_engine.attention.cpu import CpuAttention
from tokenloom_engine.batch import Batch, Row
from tokenloom_engine.kernels.library import Kernels

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 0.02, torch.float16: 0.003}


@dataclass
class _Sequence:
    """What a row needs of a sequence."""

    ids: list[int]
    block_table: list[int]
    num_scored: int = 10**9
    is_long: bool = False


@dataclass
class _Case:
    """Keys and values of some sequences, and a cache to compute with."""

    kernels: Kernels
    dtype: torch.dtype
    lengths: list[int]
    heads: int = 6
    kv_heads: int = 2
    key_dim: int = 64
    value_dim: int = 64
    block_size: int = 32
    options: AttentionOptions = field(default_factory=lambda: AttentionOptions(scaling=0.125))

    def __post_init__(self) -> None:
        most = [-(-length // self.block_size) for length in self.lengths]
        blocks = iter(torch.randperm(sum(most)).tolist())
        self.sequences = [
            _Sequence(list(range(length)), [next(blocks) for _ in range(count)])
            for length, count in zip(self.lengths, most, strict=True)
        ]
        spec = LayerSpec(0, self.kv_heads, self.key_dim, self.value_dim, None)
        self.backend = CpuAttention([spec], sum(most), self.block_size, self.dtype, self.kernels)
        self.q: list[torch.Tensor] = []
        self.k: list[torch.Tensor] = []
        self.v: list[torch.Tensor] = []
        for length in self.lengths:
            self.q.append(torch.randn(length, self.heads, self.key_dim, dtype=self.dtype))
            self.k.append(torch.randn(length, self.kv_heads, self.key_dim, dtype=self.dtype))
            self.v.append(torch.randn(length, self.kv_heads, self.value_dim, dtype=self.dtype))

    def attend(self, parts: list[tuple[int, int, int]]) -> list[torch.Tensor]:
        """One forward over (sequence, start, end); returns each part's output."""
        rows = [
            Row(self.sequences[i], start, end - start, is_prefill=True)  # type: ignore[arg-type]
            for i, start, end in parts
        ]
        batch = Batch.pack(rows, self.block_size, torch.device("cpu"), twin=False)
        self.backend.prepare(batch)
        q, k, v = (
            torch.cat([x[i][start:end] for i, start, end in parts])
            for x in (self.q, self.k, self.v)
        )
        output = self.backend.attend(0, q, k, v, self.options)
        return list(torch.split(output, [end - start for _, start, end in parts]))

    def exact(self, i: int) -> torch.Tensor:
        """The output of all tokens of a sequence, in float64."""
        group = self.heads // self.kv_heads
        q, k, v = self.q[i].double(), self.k[i].double(), self.v[i].double()
        k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
        scores = torch.einsum("qhd,khd->hqk", q, k) * self.options.scaling
        if self.options.softcap:
            scores = self.options.softcap * torch.tanh(scores / self.options.softcap)
        place = torch.arange(len(q))
        hidden = place[None, :] > place[:, None]
        if self.options.sliding_window:
            hidden |= place[None, :] <= place[:, None] - self.options.sliding_window
        scores = scores.masked_fill(hidden, -torch.inf)
        if self.options.sinks is not None:
            sinks = self.options.sinks.double()[:, None, None].expand(-1, len(q), 1)
            weights = torch.cat([scores, sinks], dim=-1).softmax(dim=-1)[..., :-1]
        else:
            weights = scores.softmax(dim=-1)
        return torch.einsum("hqk,khd->qhd", weights, v)

    def check(self) -> None:
        """Prefill in chunks, then token by token, all sequences together."""
        found: list[list[torch.Tensor]] = [[] for _ in self.lengths]
        done = [0] * len(self.lengths)
        for sizes in ([17, 40, 1], [1, 3, 200], [550, 100, 2]):
            parts = []
            for i, length in enumerate(self.lengths):
                end = min(length, done[i] + sizes[i % 3])
                if end > done[i]:
                    parts.append((i, done[i], end))
                    done[i] = end
            for (i, _, _), output in zip(parts, self.attend(parts), strict=True):
                found[i].append(output)
        for i, outputs in enumerate(found):
            own = torch.cat(outputs).double()
            exact = self.exact(i)[: len(own)]
            tolerance = TOLERANCE[self.dtype]
            torch.testing.assert_close(own, exact, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rows_of_any_length(kernels: Kernels, dtype: torch.dtype) -> None:
    _Case(kernels, dtype, [600, 143, 203, 1, 32, 33]).check()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("heads", "kv_heads", "key_dim", "value_dim", "block_size"),
    [(4, 4, 80, 80, 16), (8, 1, 128, 128, 64), (2, 2, 36, 20, 32), (3, 1, 256, 256, 512)],
)
def test_any_shape(
    kernels: Kernels,
    dtype: torch.dtype,
    heads: int,
    kv_heads: int,
    key_dim: int,
    value_dim: int,
    block_size: int,
) -> None:
    _Case(
        kernels, dtype, [70, 130], heads, kv_heads, key_dim, value_dim, block_size,
        AttentionOptions(scaling=key_dim**-0.5),
    ).check()  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("window", [1, 5, 64, 600])
def test_a_sliding_window(kernels: Kernels, dtype: torch.dtype, window: int) -> None:
    options = AttentionOptions(scaling=0.125, sliding_window=window)
    _Case(kernels, dtype, [600, 143, 40], options=options).check()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_soft_cap_and_sinks(kernels: Kernels, dtype: torch.dtype) -> None:
    sinks = torch.randn(6)
    for options in (
        AttentionOptions(scaling=0.5, softcap=3.0),
        AttentionOptions(scaling=0.125, sinks=sinks),
        AttentionOptions(scaling=0.3, softcap=20.0, sinks=sinks, sliding_window=30),
    ):
        _Case(kernels, dtype, [600, 143, 40], options=options).check()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("window", [None, 100])
def test_a_row_is_bitwise_the_same_in_any_company(
    kernels: Kernels, dtype: torch.dtype, window: int | None
) -> None:
    options = AttentionOptions(scaling=0.125, sliding_window=window)
    case = _Case(kernels, dtype, [540, 37, 520], options=options)
    whole = [case.attend([(i, 0, length)])[0] for i, length in enumerate(case.lengths)]
    together = case.attend([(i, 0, length) for i, length in enumerate(case.lengths)])
    for a, b in zip(whole, together, strict=True):
        assert torch.equal(a, b)
    for cut in (13, 512, 539):
        first, other, _ = case.attend([(0, 0, cut), (2, 0, 300), (1, 0, 37)])
        second, rest = case.attend([(0, cut, 540), (2, 300, 520)])
        assert torch.equal(torch.cat([first, second]), whole[0])
        assert torch.equal(torch.cat([other, rest]), whole[2])
    (last,) = case.attend([(0, 539, 540)])
    assert torch.equal(last, whole[0][539:])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_what_others_left_in_a_block_does_not_matter(kernels: Kernels, dtype: torch.dtype) -> None:
    case = _Case(kernels, dtype, [45])
    (clean,) = case.attend([(0, 0, 45)])
    # Another sequence had the same blocks and computed what is not a number.
    k, v = case.k[0], case.v[0]
    case.sequences[0].ids = list(range(64))
    case.q[0] = torch.cat([case.q[0], torch.zeros(19, 6, 64, dtype=dtype)])
    case.k[0], case.v[0] = (torch.full((64, 2, 64), torch.nan, dtype=dtype) for _ in range(2))
    case.attend([(0, 0, 64)])
    case.k[0], case.v[0] = k, v
    (found,) = case.attend([(0, 0, 45)])
    assert torch.equal(found, clean)
