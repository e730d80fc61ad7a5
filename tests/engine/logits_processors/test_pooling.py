"""Factories that keep what comes back."""

from __future__ import annotations

import torch

from tests.engine.processors import CONTEXT, NO_REPEAT, SKIP, Skip, Skips, V
from tokenloom_engine.logits_processors import LogitsProcessors
from tokenloom_engine.logits_processors.pooling import MAX_IDLE


def test_a_processor_comes_back_as_new_for_the_same_arguments() -> None:
    factory = NO_REPEAT(CONTEXT)
    processors = LogitsProcessors({"skip": Skips(CONTEXT), "no_repeat": factory})
    lease = processors.take([SKIP])[0]
    lease.apply([1], torch.zeros(V))
    assert isinstance(lease.processor, Skip) and lease.processor.num_calls == 1
    processors.give_back([lease])
    assert processors.take([SKIP])[0].processor is lease.processor
    assert lease.processor.num_calls == 0
    two, three = ({"ngram_size": n} for n in (2, 3))
    pair = factory.get_processor(two)
    factory.return_processor(pair, two)
    assert factory.get_processor(three) is not pair
    assert factory.get_processor(two) is pair


def test_only_so_many_are_kept() -> None:
    processors = LogitsProcessors({"skip": (factory := Skips(CONTEXT))})
    processors.give_back(processors.take([SKIP] * (MAX_IDLE + 10)))
    assert len(factory._idle) == MAX_IDLE
