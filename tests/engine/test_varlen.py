"""Attention for a GPU: what it hands to torch's operation, by a plain one of the same contract."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.attention.varlen import varlen_attn

from tests.engine.conftest import Encode
from tests.engine.running import run, submission
from tests.engine.varlen import FlashAttention2, attend_by_varlen, tiny_engine, varlen_attention
from tokenloom_engine.attention import resolve_attention, settle_attention
from tokenloom_engine.attention.base import AttentionOptions, LayerSpec
from tokenloom_engine.attention.sdpa import SdpaAttention
from tokenloom_engine.attention.varlen import (
    NEEDED,
    PAGE,
    VarlenAttention,
    VarlenStep,
    call_options,
    layers_refusal,
)
from tokenloom_engine.batch import Batch, Row
from tokenloom_engine.errors import LoadError
from tokenloom_engine.sequence import Sequence
from tokenloom_engine.vocabulary import Vocabulary

BLOCK_SIZE = 16
CPU = torch.device("cpu")
PROMPTS = ("The capital of France is", "Once upon a time there was a dog that " * 6, "1, 2, 3, ")


@pytest.mark.parametrize("window", [None, 1, 20])
@pytest.mark.parametrize("kv_heads", [1, 2, 6])
def test_says_what_sdpa_says(vocabulary: Vocabulary, window: int | None, kv_heads: int) -> None:
    torch.manual_seed(kv_heads)
    spec = LayerSpec(0, kv_heads, 32, 32, window)
    options = AttentionOptions(scaling=0.2, sliding_window=window)
    backends = (
        VarlenAttention([spec], 40, BLOCK_SIZE, torch.float32, CPU, varlen_attention),
        SdpaAttention([spec], 40, BLOCK_SIZE, torch.float32, CPU),
    )
    sequences = []
    blocks = iter(torch.randperm(40).tolist())
    for number in range(3):
        sequences.append(Sequence(submission(number, [1] * 70), vocabulary))
        sequences[-1].block_table = [next(blocks) for _ in range(5)]
    # Chunks of prompts, then decoding beside a chunk, then one token alone, which has a copy.
    for counts in ((40, 33, 0), (1, 1, 48), (1, 2, 1), (0, 1, 0)):
        rows = []
        for sequence, count in zip(sequences, counts, strict=True):
            if count:
                rows.append(Row(sequence, sequence.num_computed, count, is_prefill=False))
                sequence.num_computed += count
        batch = Batch.pack(rows, BLOCK_SIZE, CPU)
        num_tokens = batch.input_ids.shape[1]
        q, k, v = (torch.randn(num_tokens, heads, 32) for heads in (6, kv_heads, kv_heads))
        ours, expected = (
            (backend.prepare(batch), backend.attend(0, q, k, v, options))[1] for backend in backends
        )
        n = len(batch.slots)
        assert ours.shape == expected.shape
        torch.testing.assert_close(ours[:n], expected[:n])


@pytest.mark.parametrize("release", [(2, 12), (2, 13), (2, 14)])
@pytest.mark.parametrize("window", [None, 200])
@pytest.mark.parametrize("kv_heads", [4, 1])
@pytest.mark.parametrize("counts", [(1, 1), (1, 1, 1, 1, 1, 1), (40, 40), (1, 40, 1), (1,)])
def test_no_call_is_split_in_the_way_that_loses_rows(
    vocabulary: Vocabulary,
    counts: tuple[int, ...],
    kv_heads: int,
    window: int | None,
    release: tuple[int, int],
) -> None:
    """As FlashAttention 2 does it, with keys of several tiles and few rows."""
    torch.manual_seed(1)
    spec = LayerSpec(0, kv_heads, 80, 80, window)
    options = AttentionOptions(scaling=0.2, sliding_window=window)
    operation = FlashAttention2(release)
    num_blocks = 2 * len(counts)
    backends = (
        VarlenAttention([spec], num_blocks, PAGE, torch.float32, CPU, operation, release),
        SdpaAttention([spec], num_blocks, PAGE, torch.float32, CPU),
    )

    def attend(counts: tuple[int, ...]) -> None:
        rows = []
        for sequence, count in zip(sequences, counts, strict=True):
            rows.append(Row(sequence, sequence.num_computed, count, is_prefill=False))
            sequence.num_computed += count
        batch = Batch.pack(rows, PAGE, CPU, twin=False)
        num_tokens = batch.input_ids.shape[1]
        q, k, v = (torch.randn(num_tokens, heads, 80) for heads in (4, kv_heads, kv_heads))
        ours, expected = (
            (backend.prepare(batch), backend.attend(0, q, k, v, options))[1] for backend in backends
        )
        torch.testing.assert_close(ours, expected)

    sequences = []
    for number in range(len(counts)):
        sequences.append(Sequence(submission(number, [1] * 400), vocabulary))
        sequences[-1].block_table = [2 * number, 2 * number + 1]
    attend(tuple(300 - number for number in range(len(counts))))
    attend(counts)
    is_packed = max(counts) == 1 and kv_heads == 1 and window is None
    assert (operation.num_split > 0) == (is_packed and release >= (2, 13)), "fast where it may be"


@pytest.mark.parametrize(
    ("release", "most_queries", "window", "heads", "kv_heads", "expected"),
    [
        ((2, 12), 1, None, 32, 8, {"window_size": (-1, -1)}),
        ((2, 13), 1, None, 32, 8, {"window_size": (-1, -1)}),
        ((2, 12), 1, None, 32, 32, {"window_size": (-1, 0)}),
        ((2, 13), 1, None, 32, 32, {"window_size": (-1, 0), "num_splits": 1}),
        ((2, 12), 1, 4096, 32, 8, {"window_size": (4095, 0)}),
        ((2, 13), 1, 4096, 32, 8, {"window_size": (4095, 0), "num_splits": 1}),
        ((2, 13), 2, None, 32, 8, {"window_size": (-1, 0), "num_splits": 1}),
        ((3, 0), 40, 20, 8, 8, {"window_size": (19, 0), "num_splits": 1}),
    ],
)
def test_the_options_of_a_call(
    release: tuple[int, int],
    most_queries: int,
    window: int | None,
    heads: int,
    kv_heads: int,
    expected: dict[str, Any],
) -> None:
    found = call_options(release, most_queries, window, heads=heads, kv_heads=kv_heads)
    assert found == expected


def test_whole_engines_agree(tmp_path: Path, model_path: Path, encode: Encode) -> None:
    """In chunks, decoding in a crowd, and from the prefix cache."""
    engine = tiny_engine(tmp_path, model_path)

    def tokens() -> list[list[int]]:
        found: list[list[int]] = []
        for _ in range(2):  # the second time from the prefix cache
            submits = [
                submission(i, encode(text), 12, ignore_eos=True) for i, text in enumerate(PROMPTS)
            ]
            results = run(engine, submits, steps_between=1)
            found += [results[i].ids for i in range(len(PROMPTS))]
        assert max(result.cached_tokens or 0 for result in results.values()) > 0
        return found

    expected = tokens()
    attend_by_varlen(engine)
    assert tokens() == expected
    engine.close()


def test_torch_has_the_operation() -> None:
    """The arguments that the plain one stands in for are those of the installed torch."""
    theirs = inspect.signature(varlen_attn).parameters
    ours = inspect.signature(varlen_attention).parameters
    assert ours.keys() <= theirs.keys() and ours.keys() >= NEEDED
    positional = [name for name, p in ours.items() if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert list(theirs)[: len(positional)] == positional


@pytest.mark.parametrize("window", [None, 20])
@pytest.mark.parametrize("tokens", [3, 1])
def test_torch_takes_the_call(tokens: int, window: int | None) -> None:
    """On the device where only shapes are computed; the second query is the copy of a lone one."""
    meta = torch.device("meta")
    backend = VarlenAttention([LayerSpec(0, 2, 64, 64, window)], 4, 256, torch.bfloat16, meta)
    starts = torch.empty(2, dtype=torch.int32, device=meta)
    slots = torch.empty(tokens, dtype=torch.int64, device=meta)
    lengths = torch.empty(1, dtype=torch.int32, device=meta)
    tables = torch.empty(1, 3, dtype=torch.int32, device=meta)
    backend.step = VarlenStep(slots, tables, starts, starts, lengths, tokens, 700)
    num_queries = max(tokens, 2)
    q, k, v = (
        torch.empty(num_queries, heads, 64, dtype=torch.bfloat16, device=meta)
        for heads in (6, 2, 2)
    )
    options = AttentionOptions(scaling=0.125, sliding_window=window)
    with torch.inference_mode():
        assert backend.attend(0, q, k, v, options).shape == (num_queries, 6, 64)


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        (LayerSpec(0, 2, 64, 64, 4096), None),
        (LayerSpec(0, 2, 64, 64, None, softcap=30.0), "soft-cap"),
        (LayerSpec(0, 2, 64, 64, None, has_sinks=True), "sinks"),
        (LayerSpec(0, 2, 192, 128, None), "one size"),
        (LayerSpec(0, 2, 60, 60, None), "multiple of 8"),
        (LayerSpec(0, 2, 512, 512, None), "at most 256"),
    ],
)
def test_layers_that_it_cannot_attend_go_to_sdpa(
    spec: LayerSpec, reason: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    layers = [LayerSpec(1, 2, 64, 64, None), spec]
    refusal = layers_refusal(layers)
    if reason is None:
        assert refusal is None
        assert settle_attention("auto", "varlen", layers) == "varlen"
        return
    assert refusal is not None and reason in refusal
    with caplog.at_level("INFO"):
        assert settle_attention("auto", "varlen", layers) == "sdpa"
    assert refusal in caplog.text
    with pytest.raises(LoadError, match=reason):
        settle_attention("varlen", "varlen", layers)


def test_without_a_gpu_it_is_refused() -> None:
    with pytest.raises(LoadError, match="needs a GPU"):
        resolve_attention("varlen", None, torch.bfloat16, CPU, None)
    assert resolve_attention("auto", None, torch.bfloat16, CPU, None) == "sdpa"
