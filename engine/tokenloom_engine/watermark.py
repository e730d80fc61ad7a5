"""Watermarks: the text prefers words that a detector can count.

Kirchenbauer et al.: A Watermark for Large Language Models, 2023. The last token seeds the choice of
a part of the vocabulary, the green list, whose tokens become more probable. Seed and choice are
those of TGI and of transformers ("lefthash"), so that transformers' WatermarkDetector finds it.
"""

from __future__ import annotations

from functools import lru_cache

import torch

from tokenloom_engine.prospect import Prospect

HASH_KEY = 15485863
KEPT_LISTS = 256
"""A list has a byte for each entry of the vocabulary."""


class Watermark:
    """Raises the logits of green tokens in the rows of those that ask for it."""

    def __init__(self, gamma: float, delta: float) -> None:
        """`gamma`: the green share of the vocabulary; `delta`: added to its logits."""
        self._gamma = gamma
        self._delta = delta
        self._is_green = lru_cache(maxsize=KEPT_LISTS)(self._choose)

    def apply(self, scores: torch.Tensor, prospects: list[Prospect]) -> None:
        """Change, in place, the scores [rows, V]."""
        for row, prospect in enumerate(prospects):
            if prospect.submit.sampling.watermark:
                green = self._is_green(prospect.ids[-1], scores.shape[1])
                scores[row] += green.to(scores.device) * self._delta

    def _choose(self, last_id: int, vocab_size: int) -> torch.Tensor:
        """Which tokens are green after `last_id`: bool [V]."""
        generator = torch.Generator().manual_seed(HASH_KEY * last_id % (2**64 - 1))
        order = torch.randperm(vocab_size, generator=generator)
        green = torch.zeros(vocab_size, dtype=torch.bool)
        green[order[: int(vocab_size * self._gamma)]] = True
        return green
