"""Draws follow the distribution that the parameters describe."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from tests.engine.running import submission
from tokenloom_engine.batch import Row
from tokenloom_engine.kernels.library import Kernels
from tokenloom_engine.messages import LogprobParams
from tokenloom_engine.place import Draws, RowChoices
from tokenloom_engine.prospect import Prospect
from tokenloom_engine.sampler import Sampler
from tokenloom_engine.sequence import Sequence
from tokenloom_engine.vocabulary import Vocabulary
from tokenloom_engine.watermark import Watermark

V = 64
DRAWS = 20_000


@pytest.fixture(scope="module")
def logits() -> torch.Tensor:
    return torch.randn(V, generator=torch.Generator().manual_seed(3)) * 2


class Sample:
    """Draws for some sequences from their logits."""

    def __init__(self, kernels: Kernels | None) -> None:
        self._kernels = kernels

    def __call__(
        self,
        logits: torch.Tensor,
        sequences: list[Sequence],
        bitmask: Any = None,  # noqa: ANN401
        masked: list[int] | None = None,
        num_tokens: int = 10**6,
    ) -> list[RowChoices]:
        rows = [Row(s, len(s.ids) - 1, 1, is_prefill=False) for s in sequences]
        draws: Draws = {i: [Prospect(sequence)] for i, sequence in enumerate(sequences)}
        for index, allowed in zip(masked or [], [] if bitmask is None else bitmask, strict=True):
            draws[index] = [Prospect(sequences[index], allowed=allowed)]
        sampler = Sampler(num_tokens, Watermark(0.5, 2.0), self._kernels)
        return sampler.sample(logits, rows, draws)


@pytest.fixture(scope="module", params=["torch", "kernels"])
def sample(request: pytest.FixtureRequest) -> Sample:
    kernels = Kernels.load(threads=2) if request.param == "kernels" else None
    if request.param == "kernels" and kernels is None:
        pytest.skip("there is no C++ compiler")
    return Sample(kernels)


def softmax(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    exp = np.exp(scores - scores[np.isfinite(scores)].max())
    probs: NDArray[np.float64] = exp / exp.sum()
    return probs


def expected(
    logits: torch.Tensor,
    temperature: float = 1.0,
    min_p: float = 0.0,
    top_k: int = 0,
    top_p: float = 1.0,
    typical_p: float = 1.0,
) -> NDArray[np.float64]:
    """The distribution, straight from the definitions, in float64."""
    scores = logits.double().numpy() / temperature
    if min_p:
        probs = softmax(scores)
        scores[probs < min_p * probs.max()] = -np.inf
    if top_k:
        scores[scores < np.sort(scores)[-top_k]] = -np.inf
    if top_p < 1:
        order = np.argsort(-scores)
        probs = softmax(scores)[order]
        before = np.cumsum(probs) - probs
        scores[order[before >= top_p]] = -np.inf
    if typical_p < 1:
        probs = softmax(scores)
        surprise = -np.log(np.where(probs > 0, probs, 1e-300))
        distance = np.abs(surprise - (probs * surprise).sum())
        order = np.argsort(distance)
        before = np.cumsum(probs[order]) - probs[order]
        scores[order[before >= typical_p]] = -np.inf
    return softmax(scores)


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"temperature": 0.5},
        {"temperature": 2.0},
        {"temperature": 1.2e-38},
        {"top_k": 5},
        {"top_k": 1},
        {"top_p": 0.3},
        {"top_p": 0.95},
        {"typical_p": 0.5},
        {"min_p": 0.1},
        {"temperature": 1.3, "min_p": 0.02, "top_p": 0.9},
        {"top_k": 40, "top_p": 0.6, "typical_p": 0.8},
        {"temperature": 1.5, "top_k": 20, "top_p": 0.8},
        {"temperature": 0.8, "top_p": 0.9, "typical_p": 0.7},
    ],
    ids=str,
)
def test_draws_follow_the_distribution(
    sample: Sample, vocabulary: Vocabulary, logits: torch.Tensor, params: dict[str, Any]
) -> None:
    sequences = [_sequence(vocabulary, greedy=False, seed=i, **params) for i in range(DRAWS)]
    ids = [choice.drawn.id for choice in sample(logits.expand(DRAWS, V), sequences) if choice.drawn]
    counts = np.bincount(ids, minlength=V)
    probs = expected(logits, **params)
    assert counts[probs == 0].sum() == 0, "nothing outside the support"
    likely = probs * DRAWS >= 5
    rest = [[counts[~likely].sum()], [probs[~likely].sum() * DRAWS + 1e-9]]
    observed = np.append(counts[likely], rest[0])
    wanted = np.append(probs[likely] * DRAWS, rest[1])
    chi_square = ((observed - wanted) ** 2 / wanted).sum()
    freedom = likely.sum()
    assert chi_square < freedom + 4.5 * np.sqrt(2 * freedom) + 6


def test_a_row_does_not_depend_on_its_neighbours(
    sample: Sample, vocabulary: Vocabulary, logits: torch.Tensor
) -> None:
    settings: list[dict[str, Any]] = [
        {"greedy": True},
        {"temperature": 0.7},
        {"top_k": 3},
        {"top_p": 0.5},
        {"typical_p": 0.4},
        {"repetition_penalty": 1.8},
        {"frequency_penalty": 1.0, "temperature": 1.2},
    ]
    sequences = [
        _sequence(vocabulary, **{"greedy": False, "seed": 40 + i, **s})
        for i, s in enumerate(settings)
    ]
    together = sample(logits.expand(len(sequences), V), sequences)
    for sequence, choice in zip(sequences, together, strict=True):
        assert sample(logits.unsqueeze(0), [sequence])[0].drawn == choice.drawn


def test_a_wide_nucleus_over_a_large_vocabulary_is_exact(
    sample: Sample, vocabulary: Vocabulary
) -> None:
    flat = torch.randn(1, 20_000, generator=torch.Generator().manual_seed(0)) * 0.1
    support = int((expected(flat[0], top_p=0.9) > 0).sum())
    assert support > 10_000, "wider than the guess"
    sequences = [_sequence(vocabulary, greedy=False, seed=i, top_p=0.9) for i in range(500)]
    drawn = [c.drawn.id for c in sample(flat.expand(500, -1), sequences) if c.drawn]
    probs = expected(flat[0], top_p=0.9)
    assert (probs[drawn] > 0).all()
    assert np.median(drawn) == pytest.approx(10_000, rel=0.15), "from all over the vocabulary"


def test_penalties(sample: Sample, vocabulary: Vocabulary) -> None:
    logits = torch.zeros(1, V)
    logits[0, :4] = torch.tensor([4.0, 3.9, -1.0, 3.8])
    prompt, output = [0, 2], [1, 1]
    cases: list[tuple[dict[str, float], list[float]]] = [
        ({"repetition_penalty": 2.0}, [2.0, 1.95, -2.0, 3.8]),
        ({"frequency_penalty": 1.0}, [4.0, 1.9, -1.0, 3.8]),
        ({"frequency_penalty": -0.5}, [4.0, 4.9, -1.0, 3.8]),
    ]
    for params, scores in cases:
        sequence = _sequence(vocabulary, prompt=prompt, greedy=True, processed=True, **params)
        sequence.ids += output
        sequence.num_scored = len(sequence.ids)
        wanted = torch.zeros(V)
        wanted[:4] = torch.tensor(scores)
        choice = sample(logits, [sequence])[0].drawn
        assert choice is not None and choice.logprob is not None
        assert choice.id == int(wanted.argmax())
        assert choice.logprob == pytest.approx(float(wanted.log_softmax(0).max()), abs=1e-5)


def test_bitmask_leaves_what_it_allows(
    sample: Sample, vocabulary: Vocabulary, logits: torch.Tensor
) -> None:
    sequences = [_sequence(vocabulary, greedy=i % 2 == 0, seed=i) for i in range(40)]
    bitmask = np.zeros((20, 2), dtype=np.int32)
    bitmask[:, 1] = np.int32(0b110)  # tokens 33 and 34
    masked = list(range(0, 40, 2))
    choices = sample(logits.expand(40, V), sequences, bitmask, masked)
    assert {choices[i].drawn.id for i in masked} <= {33, 34}  # type: ignore[union-attr]
    assert {c.drawn.id for c in choices if c.drawn} - {33, 34}, "the others are free"


def test_padding_of_the_logits_is_never_drawn(sample: Sample, vocabulary: Vocabulary) -> None:
    logits = torch.zeros(200, V)
    logits[:, 50:] = 9.0
    sequences = [_sequence(vocabulary, greedy=False, seed=i) for i in range(200)]
    choices = sample(logits, sequences, num_tokens=50)
    assert all(choice.drawn is not None and choice.drawn.id < 50 for choice in choices)


def _sequence(
    vocabulary: Vocabulary,
    prompt: list[int] | None = None,
    processed: bool = False,
    **params: Any,  # noqa: ANN401
) -> Sequence:
    logprobs = LogprobParams(tokens=True, processed=processed)
    return Sequence(submission(0, prompt or [60, 61], 99, logprobs=logprobs, **params), vocabulary)
