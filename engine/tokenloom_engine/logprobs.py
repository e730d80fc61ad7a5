"""Log-probabilities of chosen tokens, and of the most probable ones in their places."""

from __future__ import annotations

import math

import numpy as np
import torch

from tokenloom_engine.batch import to_device
from tokenloom_engine.choice import Alternative
from tokenloom_engine.kernels.library import Kernels
from tokenloom_engine.kernels.log_sum_exp import log_sum_exp
from tokenloom_engine.place import Place


def read_processed(scores: torch.Tensor, places: list[Place]) -> None:
    """Read what was drawn from, for the rows that want that."""
    rows = [i for i, place in enumerate(places) if place.sequence.submit.logprobs.processed]
    if rows:
        read_logprobs(scores[rows], [places[i] for i in rows])


def read_logprobs(
    logits: torch.Tensor, places: list[Place], kernels: Kernels | None = None
) -> None:
    """Fill in log-probabilities that are asked for and missing: row i is that of places[i]."""
    wanted = [i for i, place in enumerate(places) if place.is_wanted]
    if not wanted:
        return
    choices = [places[i].choice for i in wanted]
    rows = to_device(np.asarray(wanted), logits.device)
    ids = to_device(np.asarray([choice.id for choice in choices]), logits.device)
    totals = _log_sum_exp(logits, wanted, kernels)
    found = logits[rows, ids] - totals
    counts = [places[i].sequence.submit.logprobs.top_n_tokens for i in wanted]
    asking = [at for at, count in enumerate(counts) if count > 0]
    if not asking:
        for choice, logprob in zip(choices, found.tolist(), strict=True):
            choice.logprob = logprob
        return
    where = to_device(np.asarray(asking), logits.device)
    best = logits[rows[where]].topk(max(counts), dim=1)
    top = best.values - totals[where].unsqueeze(1)
    # In one tensor, which a GPU sends in one piece. In float64 ids are exact.
    pieces = (found, top.flatten(), best.indices.flatten())
    numbers: list[float] = torch.cat([piece.double() for piece in pieces]).tolist()
    for choice, logprob in zip(choices, numbers, strict=False):
        choice.logprob = logprob
    for line, at in enumerate(asking):
        first = len(wanted) + line * max(counts)
        logprobs = numbers[first : first + counts[at]]
        first += top.numel()
        place = places[wanted[at]]
        place.choice.top = [
            Alternative(int(id), logprob, place.is_masked(int(id)))
            for id, logprob in zip(numbers[first : first + counts[at]], logprobs, strict=True)
            if logprob > -math.inf
        ]


def _log_sum_exp(logits: torch.Tensor, rows: list[int], kernels: Kernels | None) -> torch.Tensor:
    """[len(rows)]: that of each of these rows."""
    if kernels is not None:
        return log_sum_exp(kernels, logits, rows)
    return (logits if len(rows) == len(logits) else logits[rows]).logsumexp(dim=1)
