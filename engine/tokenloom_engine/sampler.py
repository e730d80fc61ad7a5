"""Logits to tokens, for all rows of a step at once."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray

from tokenloom_engine.batch import Row
from tokenloom_engine.bitmask import bitmask_bias
from tokenloom_engine.kernels.draw import DrawRow, draw_tokens
from tokenloom_engine.kernels.library import Kernels
from tokenloom_engine.logits_processors import ProcessorError
from tokenloom_engine.penalties import apply_logit_bias, apply_penalties, suppress_eos
from tokenloom_engine.randomness import uniform
from tokenloom_engine.sequence import Alternative, Choice, Sequence
from tokenloom_engine.warpers import (
    COLDEST,
    apply_min_p,
    apply_temperature,
    apply_top_k,
    apply_top_p,
    apply_typical_p,
)
from tokenloom_engine.watermark import Watermark


@dataclass(slots=True)
class RowChoices:
    """What a step's logits said of one row."""

    scored: list[Choice] = field(default_factory=list)
    """Tokens that were known before: of the prompt, or forced."""
    drawn: Choice | None = None
    error: str | None = None
    """Why nothing could be drawn, though it was the row's turn."""


Draws = dict[int, NDArray[np.int32] | None]
"""The rows that draw, and which tokens the constraint of each allows ([V / 32]), if it has one."""


@dataclass(slots=True)
class _Place:
    """One position with logits: where its answer goes."""

    sequence: Sequence
    choice: Choice
    is_forced: bool = False
    is_drawn: bool = False
    allowed: NDArray[np.int32] | None = None
    """[V / 32], if a constraint limits the draw."""
    error: str | None = None
    """Why nothing can be drawn."""

    @property
    def has_choice(self) -> bool:
        """Whether there is more than one token to draw, as far as the constraint goes."""
        if self.allowed is None:
            return True
        return int(np.bitwise_count(self.allowed.view(np.uint32)).sum()) > 1

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
        return asked and self.choice.logprob is None and self.choice.id >= 0


class Sampler:
    """Draws tokens and reads log-probabilities. Has no state."""

    def __init__(
        self, num_tokens: int, watermark: Watermark, kernels: Kernels | None = None
    ) -> None:
        """`num_tokens`: ids from here on are padding of the logits and are never drawn.

        `kernels`: draw by those of the CPU whatever they can draw.
        """
        self._num_tokens = num_tokens
        self._watermark = watermark
        self._kernels = kernels

    @torch.inference_mode()
    def sample(self, logits: torch.Tensor, rows: list[Row], draws: Draws) -> list[RowChoices]:
        """Choose for each row.

        `logits` [N, V] are those of the rows' `num_logits` last positions, in order.
        """
        answers, places = _places(rows, draws)
        if not places:
            return answers
        raw = logits.float()
        ways: tuple[list[int], list[int]] = [], []
        for i, place in enumerate(places):
            if place.is_drawn:
                ways[self._kernels is not None and _is_simple(place.sequence)].append(i)
        for lasts, draw in zip(ways, (self._draw, self._draw_by_kernel), strict=True):
            drawn = [places[i] for i in lasts]
            for place, id in zip(drawn, draw(raw, lasts, drawn) if lasts else (), strict=True):
                place.choice.id = id
        for index, place in zip(draws, [p for p in places if p.is_drawn], strict=True):
            if place.error is not None:
                answers[index].error = place.error
            elif place.choice.id >= 0:
                answers[index].drawn = place.choice
            else:
                answers[index].error = "no token is left to draw"
        _read_logprobs(raw, places)
        return answers

    def _draw(self, raw: torch.Tensor, lasts: list[int], places: list[_Place]) -> list[int]:
        """An id for each of these places, whose logits are raw[lasts]; -1 where there is none."""
        scores = self._scores(raw, lasts, places)
        _apply_bitmasks(scores, raw, lasts, places)
        ids, processed = _draw(scores, [place.sequence for place in places])
        possible = processed.gather(1, ids.unsqueeze(1)).squeeze(1).isfinite()
        found: list[int] = torch.where(possible, ids, -1).tolist()
        for place, id in zip(places, found, strict=True):
            place.choice.id = id
        _read_processed(processed, places)
        return found

    def _draw_by_kernel(
        self, raw: torch.Tensor, lasts: list[int], places: list[_Place]
    ) -> list[int]:
        """The same, for places whose sequences are simple."""
        assert self._kernels is not None
        num_tokens = min(self._num_tokens, raw.shape[1])
        logits = [raw[i] for i in lasts]
        changed = [i for i, place in enumerate(places) if _changes_logits(place.sequence)]
        if changed:
            scores = self._scores(raw, [lasts[i] for i in changed], [places[i] for i in changed])
            for i, row in zip(changed, scores, strict=True):
                logits[i] = row
        numbers = _uniforms([place.sequence for place in places])
        rows = [
            _draw_row(row, place, number)
            for row, place, number in zip(logits, places, numbers, strict=True)
        ]
        ids = draw_tokens(self._kernels, rows, num_tokens)
        for i, place in enumerate(places):
            if ids[i] < 0 and place.allowed is not None and place.sequence.can_suppress:
                # The constraint outranks whatever left none of its tokens.
                again = replace(rows[i], logits=raw[lasts[i]])
                ids[i] = draw_tokens(self._kernels, [again], num_tokens)[0]
        return ids

    def _scores(self, raw: torch.Tensor, lasts: list[int], places: list[_Place]) -> torch.Tensor:
        """The logits raw[lasts] of these places, changed by all but the constraints."""
        scores = raw[torch.tensor(lasts, device=raw.device)]
        sequences = [place.sequence for place in places]
        scores[:, self._num_tokens :] = -torch.inf
        apply_penalties(scores, sequences)
        apply_logit_bias(scores, sequences)
        self._apply_processors(scores, places)
        self._watermark.apply(scores, sequences)
        suppress_eos(scores, sequences)
        return scores

    def _apply_processors(self, scores: torch.Tensor, places: list[_Place]) -> None:
        """Let custom processors change, in place, the scores [rows, V] of those that have some."""
        for row, place in enumerate(places):
            processors = place.sequence.processors
            if not processors or not place.has_choice:
                continue
            ids, changed = tuple(place.sequence.ids), scores[row]
            try:
                for processor in processors:
                    changed = processor.apply(ids, changed)
            except ProcessorError as error:
                place.error = str(error)
                continue
            scores[row] = changed
            scores[row, self._num_tokens :] = -torch.inf


def _places(rows: list[Row], draws: Draws) -> tuple[list[RowChoices], list[_Place]]:
    """Each row's answer, and the place of each logit."""
    answers, places = [], []
    for index, row in enumerate(rows):
        ids = row.sequence.ids
        known = [Choice(id) for id in ids[row.first_logit + 1 : row.end + 1]]
        answers.append(RowChoices(known))
        # What is known and not of the prompt, the constraint forced.
        for position, choice in enumerate(known, start=row.first_logit + 1):
            is_forced = position >= row.sequence.prompt_len
            places.append(_Place(row.sequence, choice, is_forced=is_forced))
            if is_forced and row.sequence.submit.logprobs.processed:
                choice.logprob = 0.0  # there was nothing else to draw
                choice.top = [Alternative(choice.id, 0.0, masked=False)]
        if row.draws:
            is_drawn = index in draws
            places.append(
                _Place(
                    row.sequence,
                    Choice(-1, temperature=row.sequence.temperature if is_drawn else None),
                    is_drawn=is_drawn,
                    allowed=draws.get(index),
                )
            )
    return answers, places


def _is_simple(sequence: Sequence) -> bool:
    """Whether the kernel can draw for it."""
    submit = sequence.submit
    return submit.sampling.typical_p >= 1 and not submit.logprobs.processed


def _changes_logits(sequence: Sequence) -> bool:
    """Whether it is drawn from other scores than the model's."""
    sampling, stopping = sequence.submit.sampling, sequence.submit.stopping
    return (
        sampling.repetition_penalty != 1
        or sampling.frequency_penalty != 0
        or sampling.presence_penalty != 0
        or bool(sampling.logit_bias)
        or sampling.watermark
        or bool(sequence.processors)
        or sequence.num_generated < stopping.min_new_tokens
    )


def _draw_row(logits: torch.Tensor, place: _Place, number: float) -> DrawRow:
    sampling, temperature = place.sequence.submit.sampling, _temperature(place.sequence)
    if temperature > 0:
        temperature = max(temperature, COLDEST)
    return DrawRow(
        logits,
        place.allowed,
        temperature,
        sampling.min_p,
        sampling.top_k,
        sampling.top_p,
        number,
    )


def _draw(scores: torch.Tensor, sequences: list[Sequence]) -> tuple[torch.Tensor, torch.Tensor]:
    """Pick a token for each row of `scores` [rows, V]; also returns what was drawn from."""
    ids = scores.argmax(dim=1)
    drawing = [sequence for sequence in sequences if _temperature(sequence) > 0]
    if drawing:
        picks = [i for i, sequence in enumerate(sequences) if _temperature(sequence) > 0]
        rows = torch.tensor(picks, device=scores.device)
        warped = _warp(scores[rows], drawing)
        ids[rows] = _draw_by_inverse_cdf(warped, drawing)
        scores[rows] = warped
    return ids, scores


def _temperature(sequence: Sequence) -> float:
    """The constraint's or else the request's; 0 is greedy."""
    if sequence.temperature is not None:
        return sequence.temperature
    sampling = sequence.submit.sampling
    return 0.0 if sampling.greedy else sampling.temperature


def _warp(scores: torch.Tensor, sequences: list[Sequence]) -> torch.Tensor:
    params = [sequence.submit.sampling for sequence in sequences]
    temperatures = [_temperature(sequence) for sequence in sequences]

    def column(values: list[float]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.float32, device=scores.device)

    scores = apply_temperature(scores, column(temperatures))
    scores = apply_min_p(scores, column([p.min_p for p in params]))
    scores = apply_top_k(scores, column([p.top_k for p in params]).long())
    scores = apply_top_p(scores, column([p.top_p for p in params]))
    return apply_typical_p(scores, column([p.typical_p for p in params]))


def _draw_by_inverse_cdf(scores: torch.Tensor, sequences: list[Sequence]) -> torch.Tensor:
    draws = torch.from_numpy(_uniforms(sequences)).to(scores.device).unsqueeze(1)
    cdf = scores.softmax(dim=1).cumsum(dim=1, dtype=torch.float64)
    # right=True: the first token whose cumulated probability exceeds the number, so never one
    # of probability 0. Where no token has any, all comparisons fail: the last then stands for none.
    ids = torch.searchsorted(cdf, draws * cdf[:, -1:], right=True).squeeze(1)
    return ids.clamp_(max=scores.shape[1] - 1)


def _uniforms(sequences: list[Sequence]) -> NDArray[np.float64]:
    """The number that picks each one's token: from its seed and position alone."""
    seeds = np.asarray([s.submit.sampling.seed for s in sequences], dtype=np.uint64)
    positions = np.asarray([s.num_generated for s in sequences], dtype=np.uint64)
    return uniform(seeds, positions)


def _apply_bitmasks(
    scores: torch.Tensor, raw: torch.Tensor, lasts: list[int], places: list[_Place]
) -> None:
    """-inf, in place, for what the constraints of the places, if they have any, do not allow.

    They outrank whatever left none of their tokens: such rows are drawn from raw[lasts].
    """
    words = next((len(p.allowed) for p in places if p.allowed is not None), 0)
    if not words:
        return
    anything = np.full(words, -1, dtype=np.int32)
    bitmask = np.stack([anything if p.allowed is None else p.allowed for p in places])
    bias = bitmask_bias(bitmask, scores.shape[1], scores.device)
    scores += bias
    for row, place in enumerate(places):
        outranks = place.allowed is not None and place.sequence.can_suppress
        if outranks and bool(scores[row].amax() == -torch.inf):
            scores[row] = raw[lasts[row]] + bias[row]


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
