"""What is drawn where processors change the scores."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from transformers import MinPLogitsWarper

from tests.engine.processors import CONTEXT, Faults, Skips, V
from tests.engine.running import submission
from tokenloom_engine.batch import Row
from tokenloom_engine.logits_processors import (
    LogitsProcessorFactory,
    LogitsProcessors,
    from_transformers,
)
from tokenloom_engine.messages import LogitsProcessorSpec, LogprobParams
from tokenloom_engine.place import RowChoices
from tokenloom_engine.prospect import Prospect
from tokenloom_engine.sampler import Sampler
from tokenloom_engine.sequence import Sequence
from tokenloom_engine.vocabulary import Vocabulary
from tokenloom_engine.watermark import Watermark

FAULTS = ["raise", "none", "shape", "resize", "dtype", "nan", "inf", "nothing"]


class Samples:
    """Draws for sequences that have processors, from given logits."""

    def __init__(self, vocabulary: Vocabulary, **factories: LogitsProcessorFactory) -> None:
        self._vocabulary = vocabulary
        self._processors = LogitsProcessors(factories)

    def sequence(self, *specs: LogitsProcessorSpec, **settings: Any) -> Sequence:  # noqa: ANN401
        logprobs = LogprobParams(tokens=True, top_n_tokens=V, processed=True)
        submit = submission(0, [60, 61], 99, logprobs=logprobs, logits_processors=specs, **settings)
        sequence = Sequence(submit, self._vocabulary)
        sequence.processors = self._processors.take(specs)
        return sequence

    def draw(
        self,
        logits: torch.Tensor,
        *sequences: Sequence,
        allowed: list[int] | None = None,
        num_tokens: int = V,
    ) -> list[RowChoices]:
        """One token for each; the last one may have a constraint."""
        bitmask = None
        if allowed is not None:
            bits = np.zeros(V, dtype=np.uint8)
            bits[allowed] = 1
            bitmask = np.packbits(bits, bitorder="little").view(np.int32)
        last = len(sequences) - 1
        draws = {
            row: [Prospect(sequence, allowed=bitmask if row == last else None)]
            for row, sequence in enumerate(sequences)
        }
        rows = [Row(s, len(s.ids) - 1, 1, is_prefill=False) for s in sequences]
        return Sampler(num_tokens, Watermark(0.5, 2.0)).sample(
            logits.expand(len(rows), V), rows, draws
        )


class Write:
    """Sets scores by ids, and remembers what they were."""

    def __init__(self, values: Mapping[str, float]) -> None:
        self.before: dict[int, float] = {}
        self._values = {int(id): value for id, value in values.items()}

    def __call__(self, ids: Any, scores: torch.Tensor, /) -> torch.Tensor:  # noqa: ANN401
        self.before = {id: float(scores[id]) for id in self._values}
        for id, value in self._values.items():
            scores[id] = value
        return scores

    def reset(self) -> None:
        self.before = {}


class Writes(Skips):
    """Makes one that its arguments describe."""

    def create(self, args: Mapping[str, Any]) -> Write:  # type: ignore[override]
        return Write(args)


@pytest.fixture
def samples(vocabulary: Vocabulary) -> Samples:
    return Samples(vocabulary, write=Writes(CONTEXT), fault=Faults(CONTEXT), min_p=MIN_P(CONTEXT))


MIN_P = from_transformers(MinPLogitsWarper)
LOGITS = torch.linspace(0, 4, V)


def write(values: dict[int, float]) -> LogitsProcessorSpec:
    return LogitsProcessorSpec("write", {str(id): value for id, value in values.items()})


def test_processors_follow_the_penalties_in_the_order_given(samples: Samples) -> None:
    sequence = samples.sequence(
        write({60: 7.0}), write({60: 9.0, 5: 8.0}), logit_bias={5: 3.0}, repetition_penalty=2.0
    )
    first, second = (lease.processor for lease in sequence.processors)
    choice = samples.draw(LOGITS, sequence)[0].drawn
    assert isinstance(first, Write) and isinstance(second, Write)
    assert first.before[60] == pytest.approx(float(LOGITS[60]) / 2)
    assert second.before == {60: 7.0, 5: pytest.approx(float(LOGITS[5]) + 3)}
    assert choice is not None and choice.id == 60


def test_the_minimum_length_and_the_constraint_outrank_processors(samples: Samples) -> None:
    late = samples.sequence(write({2: 50.0, 9: 40.0}), min_new_tokens=1)
    assert [c.drawn.id for c in samples.draw(LOGITS, late) if c.drawn] == [9]
    held = samples.sequence(write({2: 50.0}))
    assert [c.drawn.id for c in samples.draw(LOGITS, held, allowed=[3, 4]) if c.drawn] == [4]
    none_left = samples.sequence(write({3: -torch.inf, 4: -torch.inf}))
    choices = samples.draw(LOGITS, none_left, allowed=[3, 4])
    assert [c.drawn.id for c in choices if c.drawn] == [4]
    assert late.end_token_ids == {2}


def test_a_token_without_alternative_skips_processors(samples: Samples) -> None:
    sequence = samples.sequence(LogitsProcessorSpec("fault", {"kind": "raise"}))
    assert [c.drawn.id for c in samples.draw(LOGITS, sequence, allowed=[31]) if c.drawn] == [31]
    assert samples.draw(LOGITS, sequence, allowed=[30, 31])[0].error is not None


def test_ids_without_a_token_stay_so(samples: Samples) -> None:
    sequence = samples.sequence(write({63: 50.0}))
    choice = samples.draw(LOGITS, sequence, num_tokens=60)[0].drawn
    assert choice is not None and choice.id == 59
    written = sequence.processors[0].processor
    assert isinstance(written, Write) and written.before == {63: -torch.inf}


def test_what_is_drawn_from_is_what_processors_left(samples: Samples) -> None:
    spec = LogitsProcessorSpec("min_p", {"min_p": 0.9})
    choice = samples.draw(LOGITS, samples.sequence(spec))[0].drawn
    assert choice is not None and choice.top is not None
    probs = LOGITS.softmax(0)
    left = (probs >= 0.9 * probs.max()).nonzero().flatten().tolist()
    assert {top.id for top in choice.top} == set(left)


@pytest.mark.parametrize(
    "settings", [{}, {"greedy": False, "top_p": 0.9, "typical_p": 0.8}], ids=str
)
@pytest.mark.parametrize("kind", FAULTS)
def test_a_fault_ends_its_own_row(
    samples: Samples, vocabulary: Vocabulary, kind: str, settings: dict[str, Any]
) -> None:
    faulty = samples.sequence(LogitsProcessorSpec("fault", {"kind": kind}), **settings)
    others = [samples.sequence(write({60: 9.0}), **settings) for _ in range(2)]
    alone = samples.draw(LOGITS, samples.sequence(write({60: 9.0}), **settings))[0]
    before, bad, after = samples.draw(LOGITS, others[0], faulty, others[1])
    assert bad.drawn is None and bad.error is not None
    assert bad.error.startswith("the logits processor fault failed: ") or kind == "nothing"
    assert "of no interest" not in bad.error
    for choices in (before, after):
        assert choices.error is None
        assert choices.drawn == alone.drawn
