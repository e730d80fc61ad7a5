"""Log-probabilities of chosen tokens, and of the most probable ones in their places."""

from __future__ import annotations

import math

import numpy as np
import torch

from tokenloom_engine.batch import to_device
from tokenloom_engine.choice import Alternative
from tokenloom_engine.place import Place


def read_processed(scores: torch.Tensor, places: list[Place]) -> None:
    """Read what was drawn from, for the rows that want that."""
    rows = [i for i, place in enumerate(places) if place.sequence.submit.logprobs.processed]
    if rows:
        read_logprobs(scores[rows], [places[i] for i in rows])


def read_logprobs(logits: torch.Tensor, places: list[Place]) -> None:
    """Fill in log-probabilities that are asked for and missing: row i is that of places[i]."""
    wanted = [i for i, place in enumerate(places) if place.is_wanted]
    if not wanted:
        return
    scores = logits if len(wanted) == len(places) else logits[wanted]
    total = scores.logsumexp(dim=1)
    ids = to_device(np.asarray([[places[i].choice.id] for i in wanted]), logits.device)
    num_top = max(places[i].sequence.submit.logprobs.top_n_tokens for i in wanted)
    best = scores.topk(num_top, dim=1)
    found = torch.cat([scores.gather(1, ids), best.values], dim=1) - total.unsqueeze(1)
    # In one tensor, which a GPU sends in one piece. In float64 ids are exact.
    lines = torch.cat([found.double(), best.indices.double()], dim=1).tolist()
    chosen = [line[0] for line in lines]
    top_logprobs = [line[1 : 1 + num_top] for line in lines]
    top_ids = [[int(id) for id in line[1 + num_top :]] for line in lines]
    for at, i in enumerate(wanted):
        choice = places[i].choice
        choice.logprob = chosen[at]
        n = places[i].sequence.submit.logprobs.top_n_tokens
        if n:
            pairs = zip(top_ids[at][:n], top_logprobs[at][:n], strict=True)
            choice.top = [
                Alternative(id, logprob, places[i].is_masked(id))
                for id, logprob in pairs
                if logprob > -math.inf
            ]
