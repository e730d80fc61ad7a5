"""Penalties of tokens that the output has."""

from __future__ import annotations

import torch

from tests.engine.running import submission
from tokenloom_engine.penalties import apply_penalties, suppress_eos
from tokenloom_engine.prospect import Prospect
from tokenloom_engine.sequence import Sequence
from tokenloom_engine.vocabulary import Vocabulary


def test_presence_counts_once_and_frequency_each_time(vocabulary: Vocabulary) -> None:
    prompt, output = [5, 6, 6], [7, 7, 7, 8]
    sequences = [
        Sequence(submission(0, prompt, presence_penalty=0.5), vocabulary),
        Sequence(submission(1, prompt, frequency_penalty=0.25), vocabulary),
        Sequence(submission(2, prompt, presence_penalty=-1.0, frequency_penalty=1.0), vocabulary),
        Sequence(submission(3, prompt), vocabulary),
    ]
    scores = torch.zeros(4, 10)
    apply_penalties(scores, [Prospect(sequence) for sequence in sequences])
    assert not scores.any(), "the prompt does not count"
    for sequence in sequences:
        sequence.ids += output
    apply_penalties(scores, [Prospect(sequence) for sequence in sequences])
    assert scores[:, 7].tolist() == [-0.5, -0.75, -2.0, 0.0]
    assert scores[:, 8].tolist() == [-0.5, -0.25, 0.0, 0.0]
    assert not scores[:, :7].any()


def test_named_ends_wait_for_the_minimum(vocabulary: Vocabulary) -> None:
    sequences = [
        Sequence(submission(0, [5], min_new_tokens=1, stop_token_ids=(4,)), vocabulary),
        Sequence(submission(1, [5], stop_token_ids=(4,)), vocabulary),
    ]
    scores = torch.zeros(2, 10)
    suppress_eos(scores, [Prospect(sequence) for sequence in sequences])
    assert scores[0].isinf().nonzero().flatten().tolist() == [2, 4]
    assert scores[1].isfinite().all()
