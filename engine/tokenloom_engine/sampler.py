"""Logits to tokens, for all rows of a step at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from tokenloom_engine.batch import Row, to_device
from tokenloom_engine.bitmask import BitmaskFill
from tokenloom_engine.kernels.draw import DrawRow, draw_tokens
from tokenloom_engine.kernels.library import Kernels
from tokenloom_engine.logits_processors import ProcessorError
from tokenloom_engine.logprobs import read_logprobs, read_processed
from tokenloom_engine.penalties import apply_logit_bias, apply_penalties, suppress_eos
from tokenloom_engine.place import Draws, Place, RowChoices, row_places, take_drawn
from tokenloom_engine.prospect import Prospect
from tokenloom_engine.randomness import uniform
from tokenloom_engine.request_id import working_for
from tokenloom_engine.warpers import (
    COLDEST,
    apply_min_p,
    apply_temperature,
    apply_top_k,
    apply_top_p,
    apply_typical_p,
)
from tokenloom_engine.watermark import Watermark

CPU = torch.device("cpu")


class Sampler:
    """Draws tokens and reads log-probabilities. Has no state."""

    def __init__(
        self,
        num_tokens: int,
        watermark: Watermark,
        kernels: Kernels | None = None,
        device: torch.device = CPU,
        holes: Sequence[int] = (),
    ) -> None:
        """`num_tokens`: ids from here on are padding of the logits, and `holes` are as well.

        They are no tokens: none is drawn, is among the most probable or has a probability.

        `kernels`: draw by those of the CPU whatever they can draw. `device`: where logits are.
        """
        self._num_tokens = num_tokens
        self._watermark = watermark
        self._kernels = kernels
        self._bitmasks = BitmaskFill(device)
        self._holes = to_device(np.asarray(holes, dtype=np.int64), device) if holes else None

    @torch.inference_mode()
    def sample(self, logits: torch.Tensor, rows: list[Row], draws: Draws) -> list[RowChoices]:
        """Choose for each row.

        `logits` [N, V] are those of the rows' `num_logits` last positions, in order.
        """
        places: list[Place] = []
        drawing: list[list[Place]] = []
        answers = []
        for index, row in enumerate(rows):
            known, drawn = row_places(row, draws.get(index, []))
            places += known + drawn
            drawing.append(drawn)
            answers.append(RowChoices([place.choice for place in known]))
        if not places:
            return answers
        raw = self._without_padding(logits)
        self._draw_all(raw, places)
        for row, drawn, answer in zip(rows, drawing, answers, strict=True):
            take_drawn(row, drawn, answer)
        read_logprobs(raw, places, self._kernels)
        return answers

    def _without_padding(self, logits: torch.Tensor) -> torch.Tensor:
        """The logits [N, V] as float32, -inf for what is no token. May change them in place."""
        raw = logits.float()
        if raw.shape[1] > self._num_tokens:
            raw[:, self._num_tokens :] = -torch.inf
        if self._holes is not None:
            raw.index_fill_(1, self._holes, -torch.inf)
        return raw

    def _draw_all(self, raw: torch.Tensor, places: list[Place]) -> None:
        """Draw for all places that have a prospect, each from its row of the logits."""
        ways: tuple[list[int], list[int]] = [], []
        for i, place in enumerate(places):
            if place.prospect is not None:
                ways[self._kernels is not None and _is_simple(place.prospect)].append(i)
        for lasts, draw in zip(ways, (self._draw, self._draw_by_kernel), strict=True):
            drawn = [places[i] for i in lasts]
            for place, id in zip(drawn, draw(raw, lasts, drawn) if lasts else (), strict=True):
                place.choice.id = id

    def _draw(self, raw: torch.Tensor, lasts: list[int], places: list[Place]) -> list[int]:
        """An id for each of these places, whose logits are raw[lasts]; -1 where there is none."""
        prospects = _prospects(places)
        scores = self._scores(raw, lasts, places)
        self._apply_bitmasks(scores, raw, lasts, prospects)
        ids, processed = _draw(scores, prospects)
        possible = processed.gather(1, ids.unsqueeze(1)).squeeze(1).isfinite()
        found: list[int] = torch.where(possible, ids, -1).tolist()
        for place, id in zip(places, found, strict=True):
            place.choice.id = id
        read_processed(processed, places)
        return found

    def _draw_by_kernel(
        self, raw: torch.Tensor, lasts: list[int], places: list[Place]
    ) -> list[int]:
        """The same, for places whose prospects are simple."""
        assert self._kernels is not None
        prospects = _prospects(places)
        num_tokens = min(self._num_tokens, raw.shape[1])
        logits = [raw[i] for i in lasts]
        changed = [i for i, prospect in enumerate(prospects) if _changes_logits(prospect)]
        if changed:
            scores = self._scores(raw, [lasts[i] for i in changed], [places[i] for i in changed])
            for i, row in zip(changed, scores, strict=True):
                logits[i] = row
        numbers = _uniforms(prospects)
        rows = [
            _draw_row(row, prospect, number)
            for row, prospect, number in zip(logits, prospects, numbers, strict=True)
        ]
        ids = draw_tokens(self._kernels, rows, num_tokens)
        for i, prospect in enumerate(prospects):
            if ids[i] < 0 and prospect.allowed is not None and prospect.can_suppress:
                # The constraint outranks whatever left none of its tokens.
                again = replace(rows[i], logits=raw[lasts[i]])
                ids[i] = draw_tokens(self._kernels, [again], num_tokens)[0]
        return ids

    def _scores(self, raw: torch.Tensor, lasts: list[int], places: list[Place]) -> torch.Tensor:
        """The logits raw[lasts] of these places, changed by all but the constraints."""
        scores = raw[to_device(np.asarray(lasts), raw.device)]
        prospects = _prospects(places)
        apply_penalties(scores, prospects)
        apply_logit_bias(scores, prospects)
        self._apply_processors(scores, places)
        self._watermark.apply(scores, prospects)
        suppress_eos(scores, prospects)
        return scores

    def _apply_processors(self, scores: torch.Tensor, places: list[Place]) -> None:
        """Let custom processors change, in place, the scores [rows, V] of those that have some."""
        for row, (place, prospect) in enumerate(zip(places, _prospects(places), strict=True)):
            processors = place.sequence.processors
            if not processors or not prospect.has_choice:
                continue
            ids, changed = tuple(prospect.ids), scores[row]
            try:
                with working_for(place.sequence.submit.request_id):
                    for processor in processors:
                        changed = processor.apply(ids, changed)
            except ProcessorError as error:
                place.error = str(error)
                continue
            scores[row] = changed
            self._without_padding(scores[row : row + 1])

    def _apply_bitmasks(
        self, scores: torch.Tensor, raw: torch.Tensor, lasts: list[int], prospects: list[Prospect]
    ) -> None:
        """-inf, in place, for what the constraints of the prospects, if they have any, forbid.

        They outrank whatever left none of their tokens: such rows are drawn from raw[lasts].
        """
        allowed = {i: p.allowed for i, p in enumerate(prospects) if p.allowed is not None}
        if not allowed:
            return
        self._bitmasks.apply(scores, list(allowed), np.stack(list(allowed.values())))
        for row, bits in allowed.items():
            if prospects[row].can_suppress and bool(scores[row].amax() == -torch.inf):
                scores[row] = raw[lasts[row]]
                self._bitmasks.apply(scores, [row], bits[np.newaxis])


def _prospects(places: list[Place]) -> list[Prospect]:
    """Those of places that all have one."""
    return [place.prospect for place in places if place.prospect is not None]


def _is_simple(prospect: Prospect) -> bool:
    """Whether the kernel can draw it."""
    submit = prospect.submit
    return submit.sampling.typical_p >= 1 and not submit.logprobs.processed


def _changes_logits(prospect: Prospect) -> bool:
    """Whether it is drawn from other scores than the model's."""
    sampling = prospect.submit.sampling
    return (
        sampling.repetition_penalty != 1
        or sampling.frequency_penalty != 0
        or sampling.presence_penalty != 0
        or bool(sampling.logit_bias)
        or sampling.watermark
        or bool(prospect.sequence.processors)
        or prospect.is_early
    )


def _draw_row(logits: torch.Tensor, prospect: Prospect, number: float) -> DrawRow:
    sampling, temperature = prospect.submit.sampling, prospect.temperature
    if temperature > 0:
        temperature = max(temperature, COLDEST)
    return DrawRow(
        logits,
        prospect.allowed,
        temperature,
        sampling.min_p,
        sampling.top_k,
        sampling.top_p,
        number,
    )


def _draw(scores: torch.Tensor, prospects: list[Prospect]) -> tuple[torch.Tensor, torch.Tensor]:
    """Pick a token for each row of `scores` [rows, V]; also returns what was drawn from."""
    ids = scores.argmax(dim=1)
    picks = [i for i, prospect in enumerate(prospects) if prospect.temperature > 0]
    if picks:
        drawing = [prospects[i] for i in picks]
        rows = to_device(np.asarray(picks), scores.device)
        warped = _warp(scores[rows], drawing)
        ids[rows] = _draw_by_inverse_cdf(warped, drawing)
        scores[rows] = warped
    return ids, scores


def _warp(scores: torch.Tensor, prospects: list[Prospect]) -> torch.Tensor:
    params = [prospect.submit.sampling for prospect in prospects]
    temperatures = [prospect.temperature for prospect in prospects]

    def column(values: list[float]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.float32)

    scores = apply_temperature(scores, column(temperatures))
    scores = apply_min_p(scores, column([p.min_p for p in params]))
    scores = apply_top_k(scores, column([p.top_k for p in params]).long())
    scores = apply_top_p(scores, column([p.top_p for p in params]))
    return apply_typical_p(scores, column([p.typical_p for p in params]))


def _draw_by_inverse_cdf(scores: torch.Tensor, prospects: list[Prospect]) -> torch.Tensor:
    draws = to_device(_uniforms(prospects), scores.device).unsqueeze(1)
    cdf = scores.softmax(dim=1).cumsum(dim=1, dtype=torch.float64)
    # right=True: the first token whose cumulated probability exceeds the number, so never one
    # of probability 0. Where no token has any, all comparisons fail: the last then stands for none.
    ids = torch.searchsorted(cdf, draws * cdf[:, -1:], right=True).squeeze(1)
    return ids.clamp_(max=scores.shape[1] - 1)


def _uniforms(prospects: list[Prospect]) -> NDArray[np.float64]:
    """The number that picks each one's token: from its seed and position alone."""
    seeds = np.asarray([p.submit.sampling.seed for p in prospects], dtype=np.uint64)
    positions = np.asarray([p.num_generated for p in prospects], dtype=np.uint64)
    return uniform(seeds, positions)
