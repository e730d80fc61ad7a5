"""Forwards: launched over a step's rows, and drawn from when their logits are there."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch

from tokenloom_engine.batch import Batch, Row
from tokenloom_engine.forward_clock import ForwardClock
from tokenloom_engine.model_runner import ModelRunner
from tokenloom_engine.place import Draws, RowChoices
from tokenloom_engine.prospect import Prospect, prospects
from tokenloom_engine.sampler import Sampler
from tokenloom_engine.step_masks import StepMasks


@dataclass(slots=True, frozen=True)
class Flight:
    """A forward that was launched, and whose tokens are still to be drawn."""

    rows: list[Row]
    drawing: list[int]
    """The rows whose next tokens are to be drawn."""
    num_tokens: int
    """Computed, drafts included."""
    started_at: float
    """By `time.perf_counter()`."""
    outcome: torch.Tensor | Exception
    """Logits [num_logits, vocab_size], row after row; or why they could not be had."""
    broken: list[Row]
    """Rows that are left out, for want of a block or a token; their sequences have failed."""


class Forwards:
    """Runs one forward after another, with bitmasks filled meanwhile, and the sampling."""

    def __init__(
        self, runner: ModelRunner, clock: ForwardClock, masks: StepMasks, sampler: Sampler
    ) -> None:
        self._runner = runner
        self._clock = clock
        self._masks = masks
        self._sampler = sampler

    @property
    def seconds(self) -> float:
        """How long the last one took; waits for its end."""
        return self._clock.seconds

    def launch(self, rows: list[Row]) -> Flight:
        """Begin one. A GPU computes on after this has returned.

        What is raised, `draw` raises: there shows, too, what a GPU has to object.
        """
        started_at = time.perf_counter()
        broken: list[Row] = []
        outcome: torch.Tensor | Exception
        try:
            self._start_masks(rows)
            try:
                batch = self._pack(rows)
            except IndexError:
                rows, broken = self._separate(rows)
                if not rows:
                    return Flight([], [], 0, started_at, torch.empty(0), broken)
                batch = self._pack(rows)
            outcome = self._logits(batch)
        except Exception as error:
            outcome = error
        drawing = [i for i, row in enumerate(rows) if row.draws]
        num_tokens = sum(row.count for row in rows)
        return Flight(rows, drawing, num_tokens, started_at, outcome, broken)

    def draw(self, flight: Flight) -> list[tuple[Row, RowChoices]]:
        """Choose for each row: waits for the logits and, not for long, for the bitmasks.

        A sequence that stopped or went during the forward has left, and gets nothing. One whose
        mask is late draws nothing.
        """
        if isinstance(flight.outcome, Exception):
            raise flight.outcome
        rows = flight.rows
        drawing = [i for i in flight.drawing if not rows[i].sequence.has_left]
        waiting = [rows[i].sequence for i in drawing]
        self._masks.wait_beside_forward(waiting, are_all=len(waiting) == len(rows))
        draws: Draws = {i: _prospects(rows[i]) for i in drawing if not rows[i].sequence.is_late}
        choices = self._sampler.sample(flight.outcome, rows, draws)
        return [pair for pair in zip(rows, choices, strict=True) if not pair[0].sequence.has_left]

    def _start_masks(self, rows: list[Row]) -> None:
        drawing = [row for row in rows if row.draws]
        self._masks.start(row.sequence for row in drawing if not row.drafts)
        self._masks.look_ahead(row for row in drawing if row.drafts)

    def _pack(self, rows: list[Row]) -> Batch:
        model = self._runner.model
        return Batch.pack(
            rows, self._runner.block_size, model.device, twin=not model.is_batch_invariant
        )

    def _separate(self, rows: list[Row]) -> tuple[list[Row], list[Row]]:
        """The rows that can be packed, and the others, whose sequences fail."""
        whole: list[Row] = []
        broken: list[Row] = []
        for row in rows:
            try:
                self._pack([row])
            except IndexError as error:
                row.sequence.break_off(error)
                broken.append(row)
            else:
                whole.append(row)
        return whole, broken

    def _logits(self, batch: Batch) -> torch.Tensor:
        self._clock.start()
        logits = self._runner.get_logits(batch)
        self._clock.stop()
        return logits


def _prospects(row: Row) -> list[Prospect]:
    """What the row may draw; nothing if its sequence fails."""
    try:
        return prospects(row.sequence, row.drafts)
    except Exception as error:
        row.sequence.break_off(error)
        return []
