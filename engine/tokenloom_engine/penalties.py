"""Changes to single tokens' logits: penalties, biases, a minimum length."""

from __future__ import annotations

import numpy as np
import torch

from tokenloom_engine.batch import to_device
from tokenloom_engine.prospect import Prospect


def apply_penalties(scores: torch.Tensor, prospects: list[Prospect]) -> None:
    """Lower, in place, the scores [rows, V] of tokens that row i's sequence has seen.

    The repetition penalty (Keskar et al.: CTRL, 2019) counts prompt and output, the frequency and
    presence penalties, as OpenAI defines them, the output alone.
    """
    for row, prospect in enumerate(prospects):
        sampling = prospect.submit.sampling
        if sampling.repetition_penalty != 1.0:
            ids = to_device(np.unique(np.asarray(prospect.ids)), scores.device)
            seen = scores[row, ids]
            penalty = sampling.repetition_penalty
            scores[row, ids] = torch.where(seen < 0, seen * penalty, seen / penalty)
        frequency, presence = sampling.frequency_penalty, sampling.presence_penalty
        if (frequency or presence) and prospect.num_generated:
            output = np.asarray(prospect.ids[prospect.sequence.prompt_len :])
            unique, counts = np.unique(output, return_counts=True)
            ids = to_device(unique, scores.device)
            scores[row, ids] -= to_device(counts, scores.device) * frequency + presence


def apply_logit_bias(scores: torch.Tensor, prospects: list[Prospect]) -> None:
    """Add, in place, to the scores [rows, V] what row i's sequence asks for."""
    for row, prospect in enumerate(prospects):
        if bias := prospect.submit.sampling.logit_bias:
            ids = to_device(np.asarray(list(bias)), scores.device)
            values = np.asarray(list(bias.values()), dtype=np.float32)
            scores[row, ids] += to_device(values, scores.device)


def suppress_eos(scores: torch.Tensor, prospects: list[Prospect]) -> None:
    """-inf, in place, for the tokens that would end row i's sequence before its minimum length."""
    for row, prospect in enumerate(prospects):
        if prospect.is_early:
            ids = np.asarray(list(prospect.sequence.end_token_ids), dtype=np.int64)
            scores[row, to_device(ids, scores.device)] = -torch.inf
