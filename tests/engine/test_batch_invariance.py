"""The same request, the same logits to the last bit: alone, in a crowd, in chunks, from the cache.

That is promised where the CPU kernels compute the whole decoder (docs/determinism.md).
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.engine.conftest import Encode, MakeEngine
from tests.engine.running import submission
from tokenloom_engine.batch import Batch
from tokenloom_engine.engine import Engine
from tokenloom_engine.messages import LogprobParams

PROMPTS = (
    "The lighthouse keeper counted the waves until ",
    "Once upon a time there was a river that " * 12,
    "1, 2, 3, ",
    "def fibonacci(n):\n    ",
)
NUM_TOKENS = 12

Logits = dict[tuple[int, ...], torch.Tensor]
"""By the tokens that they follow. Behind drafts that are wrong, there are others."""


class Recorder:
    """An engine whose logits are kept."""

    def __init__(self, engine: Engine) -> None:
        if not engine._runner.model.is_batch_invariant:
            pytest.skip("the CPU kernels cannot be built")
        self.engine = engine
        self.logits: Logits = {}
        self.num_preemptions = 0
        get_logits = engine._runner.get_logits

        def recording(batch: Batch) -> torch.Tensor:
            logits = get_logits(batch)
            rows = iter(logits)
            for row in batch.rows:
                ids = (*row.sequence.ids[: row.known_end], *row.drafts)
                for position in range(row.first_logit, row.end):
                    key = ids[: position + 1]
                    found = next(rows).clone()
                    # What is computed twice, after a preemption, must be the same too.
                    assert torch.equal(self.logits.setdefault(key, found), found)
            return logits

        engine._runner.get_logits = recording  # type: ignore[method-assign]

    def run(self, prompts: dict[int, list[int]], *, whole: bool = False) -> Logits:
        """`whole`: with the logits of the prompts' tokens, too."""
        for id, ids in prompts.items():
            # Draws are seeded by position, so equal logits lead to equal tokens.
            draw: dict[str, Any] = {
                "greedy": id % 2 == 0,
                "temperature": 0.8,
                "seed": id,
                "ignore_eos": True,
            }
            logprobs = LogprobParams(tokens=True, prompt=whole)
            self.engine.submit(submission(id, ids, NUM_TOKENS, logprobs=logprobs, **draw))
        while self.engine.has_work:
            self.num_preemptions += self.engine.step().stats.preemptions
        found, self.logits = self.logits, {}
        return found


@pytest.mark.parametrize(
    ("dtype", "quantize"),
    [("bfloat16", None), ("bfloat16", "int8")],
)
def test_logits_are_bitwise_the_same_in_any_company(
    make_engine: MakeEngine, encode: Encode, dtype: str, quantize: str | None
) -> None:
    prompts = {id: encode(text) for id, text in enumerate(PROMPTS)}
    settings = {"dtype": dtype, "quantize": quantize}
    engine = Recorder(make_engine(**settings, prefix_caching=False, speculate=0))
    alone: Logits = {}
    for id, ids in prompts.items():
        alone |= engine.run({id: ids})
    assert len(alone) == len(PROMPTS) * NUM_TOKENS

    def same(found: Logits) -> bool:
        keys = found.keys() & alone.keys()
        return len(keys) >= NUM_TOKENS and all(torch.equal(found[key], alone[key]) for key in keys)

    crowd = engine.run(prompts)
    assert crowd.keys() == alone.keys() and same(crowd), "in a crowd"
    whole = engine.run(prompts, whole=True)
    assert len(whole) > len(crowd) and same(whole), "with logits that nobody draws from"
    chunks = Recorder(make_engine(**settings, max_batch_prefill_tokens=7))
    assert same(chunks.run(prompts)), "in chunks, and with drafts"
    assert same(chunks.run(prompts)), "from the prefix cache"
    tight = Recorder(make_engine(**settings, max_batch_total_tokens=80, speculate=0))
    short = {id: ids for id, ids in prompts.items() if len(ids) < 16}
    assert same(tight.run(short)), "after preemptions"
    assert tight.num_preemptions > 0
