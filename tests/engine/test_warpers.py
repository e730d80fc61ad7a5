"""What narrows a distribution, row by row."""

from __future__ import annotations

import torch

from tokenloom_engine.warpers import apply_min_p


def test_min_p_keeps_a_share_of_the_best() -> None:
    probabilities = torch.tensor([[0.5, 0.3, 0.15, 0.05]]).repeat(4, 1)
    scores = probabilities.log()
    shares = torch.tensor([0.0, 0.05, 0.35, 1.0])
    kept = apply_min_p(scores, shares).isfinite()
    assert kept.sum(dim=1).tolist() == [4, 4, 2, 1]
    assert kept[:, 0].all()
    assert torch.equal(apply_min_p(scores, torch.zeros(4)), scores), "0 is off"


def test_min_p_leaves_what_is_ruled_out_alone() -> None:
    scores = torch.tensor([[-torch.inf, 1.0, 1.0], [-torch.inf, -torch.inf, 0.0]])
    kept = apply_min_p(scores, torch.tensor([0.9, 0.0])).isfinite()
    assert kept.tolist() == [[False, True, True], [False, False, True]]
