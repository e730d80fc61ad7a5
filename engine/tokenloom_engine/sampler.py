"""Logits to tokens, for all rows of a step at once."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import torch

from tokenloom_engine.batch import Row
from tokenloom_engine.constraints.base import Bitmask
from tokenloom_engine.penalties import apply_penalties
from tokenloom_engine.randomness import uniform
from tokenloom_engine.sequence import Alternative, Choice, Sequence
from tokenloom_engine.warpers import (
    apply_temperature,
    apply_top_k,
    apply_top_p,
    apply_typical_p,
)


@dataclass(slots=True)
class RowChoices:
    """What a step's logits said of one row."""

    scored: list[Choice] = field(default_factory=list)
    """Tokens that were known before: of the prompt, or forced."""
    drawn: Choice | None = None


@dataclass(slots=True)
class _Place:
    """One position with logits: where its answer goes."""

    sequence: Sequence
    choice: Choice
    is_forced: bool = False
    allowed: Bitmask | None = None
    """[V / 32], if a constraint limits the draw."""

    def is_masked(self, id: int) -> bool:
        """Whether the constraint leaves this token out."""
        if self.allowed is not None:
            return not self.allowed[id // 32] >> id % 32 & 1
        return self.is_forced and id != self.choice.id

    @property
    def is_wanted(self) -> bool:
        """Whether its log-probability is asked for and not read yet."""
        params = self.sequence.submit.logprobs
        asked = params.tokens or params.prompt or params.top_n_tokens > 0
        return asked and self.choice.logprob is None


class Sampler:
    """Draws tokens and reads log-probabilities. Has no state."""

    def __init__(self, num_tokens: int) -> None:
        """`num_tokens`: ids from here on are padding of the logits and are never drawn."""
        self._num_tokens = num_tokens

    @torch.inference_mode()
    def sample(
        self, logits: torch.Tensor, rows: list[Row], bitmask: Bitmask | None, masked: list[int]
    ) -> list[RowChoices]:
        """Choose for each row.

        `logits` [N, V] are those of the rows' `num_logits` last positions, in order.
        `bitmask` [len(masked), V / 32] belongs to the rows whose indices are in `masked`.
        """
        answers, places, draws = _places(rows)
        if not places:
            return answers
        raw = logits.float()
        if draws:
            scores = raw[torch.tensor(list(draws.values()), device=raw.device)]
            sequences = [rows[index].sequence for index in draws]
            apply_penalties(scores, sequences)
            scores[:, self._num_tokens :] = -torch.inf
            if bitmask is not None and masked:
                order = {index: place for place, index in enumerate(draws)}
                for index, allowed in zip(masked, bitmask, strict=True):
                    places[draws[index]].allowed = allowed
                _apply_bitmask(scores, [order[index] for index in masked], bitmask)
            ids, processed = _draw(scores, sequences)
            for index, place, id in zip(draws, draws.values(), ids, strict=True):
                places[place].choice.id = id
                answers[index].drawn = places[place].choice
            _read_processed(processed, [places[i] for i in draws.values()])
        _read_logprobs(raw, places)
        return answers


def _places(rows: list[Row]) -> tuple[list[RowChoices], list[_Place], dict[int, int]]:
    """Each row's answer, each logit's place, and of each drawing row (by index) its last place."""
    answers, places, draws = [], [], {}
    for index, row in enumerate(rows):
        ids = row.sequence.ids
        known = [Choice(id) for id in ids[row.first_logit + 1 : row.end + 1]]
        answers.append(RowChoices(known))
        # What is known and not of the prompt, the constraint forced.
        places += [
            _Place(row.sequence, choice, is_forced=position >= row.sequence.prompt_len)
            for position, choice in enumerate(known, start=row.first_logit + 1)
        ]
        if row.draws:
            draws[index] = len(places)
            places.append(_Place(row.sequence, Choice(-1)))
    return answers, places, draws


def _draw(scores: torch.Tensor, sequences: list[Sequence]) -> tuple[list[int], torch.Tensor]:
    """Pick a token for each row of `scores` [rows, V]; also returns what was drawn from."""
    ids = scores.argmax(dim=1)
    picks = [i for i, sequence in enumerate(sequences) if not sequence.submit.sampling.greedy]
    if picks:
        rows = torch.tensor(picks, device=scores.device)
        warped = _warp(scores[rows], [sequences[i] for i in picks])
        ids[rows] = _draw_by_inverse_cdf(warped, [sequences[i] for i in picks])
        scores[rows] = warped
    result: list[int] = ids.tolist()
    return result, scores


def _warp(scores: torch.Tensor, sequences: list[Sequence]) -> torch.Tensor:
    params = [sequence.submit.sampling for sequence in sequences]

    def column(values: list[float]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.float32, device=scores.device)

    scores = apply_temperature(scores, column([p.temperature for p in params]))
    scores = apply_top_k(scores, column([p.top_k for p in params]).long())
    scores = apply_top_p(scores, column([p.top_p for p in params]))
    return apply_typical_p(scores, column([p.typical_p for p in params]))


def _draw_by_inverse_cdf(scores: torch.Tensor, sequences: list[Sequence]) -> torch.Tensor:
    """One uniform number a row, from its seed and position alone, picks the token."""
    seeds = np.asarray([s.submit.sampling.seed for s in sequences], dtype=np.uint64)
    positions = np.asarray([s.num_generated for s in sequences], dtype=np.uint64)
    draws = torch.from_numpy(uniform(seeds, positions)).to(scores.device).unsqueeze(1)
    cdf = scores.softmax(dim=1).cumsum(dim=1, dtype=torch.float64)
    # right=True: the first token whose cumulated probability exceeds the number, so never one
    # of probability 0.
    return torch.searchsorted(cdf, draws * cdf[:, -1:], right=True).squeeze(1)


def _apply_bitmask(scores: torch.Tensor, rows: list[int], bitmask: Bitmask) -> None:
    """-inf, in place, where row i of the bitmask, that is row rows[i] of scores, has no bit."""
    bits = np.unpackbits(bitmask.view(np.uint8), axis=1, bitorder="little")
    allowed = torch.from_numpy(bits[:, : scores.shape[1]]).view(torch.bool).to(scores.device)
    index = torch.tensor(rows, device=scores.device)
    scores[index] = scores[index].masked_fill(~allowed, -torch.inf)


def _read_processed(scores: torch.Tensor, places: list[_Place]) -> None:
    """Read what was drawn from, for the rows that want that."""
    rows = [i for i, place in enumerate(places) if place.sequence.submit.logprobs.processed]
    if rows:
        _read_logprobs(scores[rows], [places[i] for i in rows])


def _read_logprobs(logits: torch.Tensor, places: list[_Place]) -> None:
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
