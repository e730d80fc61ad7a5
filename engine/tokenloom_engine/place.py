"""Positions with logits, and where their answers go."""

from __future__ import annotations

from dataclasses import dataclass, field

from tokenloom_engine.batch import Row
from tokenloom_engine.choice import Alternative, Choice
from tokenloom_engine.prospect import Prospect
from tokenloom_engine.sequence import Sequence

Draws = dict[int, list[Prospect]]
"""The rows that draw, and what: the next token, and one after each draft that can be verified."""


@dataclass(slots=True)
class RowChoices:
    """What a step's logits said of one row."""

    scored: list[Choice] = field(default_factory=list)
    """Tokens that were known before: of the prompt, or forced."""
    accepted: list[Choice] = field(default_factory=list)
    """Drafts that are what would have been drawn."""
    drawn: Choice | None = None
    error: str | None = None
    """Why nothing could be drawn, though it was the row's turn."""


@dataclass(slots=True)
class Place:
    """One position with logits: where its answer goes."""

    sequence: Sequence
    choice: Choice
    is_forced: bool = False
    prospect: Prospect | None = None
    """What is drawn, if anything is."""
    error: str | None = None
    """Why nothing can be drawn."""

    def is_masked(self, id: int) -> bool:
        """Whether the constraint leaves this token out."""
        allowed = None if self.prospect is None else self.prospect.allowed
        if allowed is not None:
            return not allowed[id // 32] >> id % 32 & 1
        return self.is_forced and id != self.choice.id

    @property
    def is_wanted(self) -> bool:
        """Whether its log-probability is asked for and not read yet."""
        params = self.sequence.submit.logprobs
        asked = params.tokens or params.prompt or params.top_n_tokens > 0
        return asked and self.choice.logprob is None and self.choice.id >= 0


def row_places(row: Row, prospects: list[Prospect]) -> tuple[list[Place], list[Place]]:
    """The places of a row's logits: of known tokens, and of those to draw.

    Of the latter, those without a prospect are nobody's: nothing can be said of them yet.
    """
    sequence = row.sequence
    known = []
    for position in range(row.first_logit + 1, min(row.known_end + 1, len(sequence.ids))):
        choice = Choice(sequence.ids[position])
        # What is known and not of the prompt, the constraint forced.
        is_forced = position >= sequence.prompt_len
        known.append(Place(sequence, choice, is_forced=is_forced))
        if is_forced and sequence.submit.logprobs.processed:
            choice.logprob = 0.0  # there was nothing else to draw
            choice.top = [Alternative(choice.id, 0.0, masked=False)]
    if not row.draws:
        return known, []
    drawn = [
        Place(
            sequence,
            Choice(-1, temperature=prospect.grammar_temperature, is_forced=prospect.is_forced),
            prospect=prospect,
        )
        for prospect in prospects
    ]
    num_others = 1 + len(row.drafts) - len(drawn)
    return known, drawn + [Place(sequence, Choice(-1)) for _ in range(num_others)]


def take_drawn(row: Row, drawn: list[Place], answer: RowChoices) -> None:
    """Put into the answer what was drawn, up to the first token that is not the row's draft.

    What was drawn after that is as if it had not been.
    """
    for index, place in enumerate(drawn):
        if place.prospect is None:
            break
        answer.error = place.error
        if place.error is None and place.choice.id < 0:
            answer.error = "no token is left to draw"
        if answer.error is not None:
            break
        if answer.drawn is not None:
            answer.accepted.append(answer.drawn)
        answer.drawn = place.choice
        if row.drafts[index : index + 1] != (place.choice.id,):
            break
    for place in drawn[len(answer.accepted) + 1 :]:
        place.choice.id = -1
