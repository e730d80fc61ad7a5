"""A watermark prefers the tokens that transformers' own processor prefers, in its row alone."""

from __future__ import annotations

import pytest
import torch
from transformers import WatermarkLogitsProcessor

from tests.engine.running import submission
from tokenloom_engine.batch import Row
from tokenloom_engine.messages import LogprobParams
from tokenloom_engine.prospect import Prospect
from tokenloom_engine.sampler import Sampler
from tokenloom_engine.sequence import Sequence
from tokenloom_engine.vocabulary import Vocabulary
from tokenloom_engine.watermark import Watermark

V = 1000


def _sequence(vocabulary: Vocabulary, prompt: list[int], *, watermark: bool) -> Sequence:
    wanted = LogprobParams(tokens=True)
    return Sequence(
        submission(0, prompt, 9, logprobs=wanted, watermark=watermark, greedy=True), vocabulary
    )


@pytest.mark.parametrize(("gamma", "delta"), [(0.5, 2.0), (0.25, 5.0)])
def test_the_green_list_is_that_of_transformers(
    vocabulary: Vocabulary, gamma: float, delta: float
) -> None:
    logits = torch.randn(3, V, generator=torch.Generator().manual_seed(1))
    prompts = [[5, 900], [5, 0], [7]]
    sequences = [_sequence(vocabulary, prompt, watermark=True) for prompt in prompts]
    scores = logits.clone()
    Watermark(gamma, delta).apply(scores, [Prospect(sequence) for sequence in sequences])
    theirs = WatermarkLogitsProcessor(V, "cpu", greenlist_ratio=gamma, bias=delta)
    for row, prompt in enumerate(prompts):
        expected = theirs(torch.LongTensor([prompt]), logits[row : row + 1])
        assert torch.allclose(scores[row : row + 1], expected)


def test_neighbours_and_log_probabilities_stay(vocabulary: Vocabulary) -> None:
    logits = torch.randn(40, V, generator=torch.Generator().manual_seed(2))
    sequences = [_sequence(vocabulary, [i + 3], watermark=i % 2 == 0) for i in range(40)]
    rows = [Row(sequence, 0, 1, is_prefill=False) for sequence in sequences]
    sampler = Sampler(V, Watermark(0.5, 2.0))
    own = logits.log_softmax(dim=1)
    moved = 0
    draws = {i: [Prospect(sequence)] for i, sequence in enumerate(sequences)}
    for row, choice in enumerate(sampler.sample(logits, rows, draws)):
        assert choice.drawn is not None
        best = int(logits[row].argmax())
        assert row % 2 == 0 or choice.drawn.id == best
        moved += choice.drawn.id != best
        assert choice.drawn.logprob == pytest.approx(float(own[row, choice.drawn.id]), abs=1e-5)
    assert moved > 5
