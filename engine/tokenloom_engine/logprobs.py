"""Log-probabilities of chosen tokens, and of the most probable ones in their places."""

from __future__ import annotations

import math

import torch

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
    ids = torch.tensor([[places[i].choice.id] for i in wanted], device=logits.device)
    chosen = (scores.gather(1, ids).squeeze(1) - total).tolist()
    num_top = max(places[i].sequence.submit.logprobs.top_n_tokens for i in wanted)
    best = scores.topk(num_top, dim=1)
    top_logprobs = (best.values - total.unsqueeze(1)).tolist()
    top_ids = best.indices.tolist()
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
