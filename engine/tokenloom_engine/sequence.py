"""One generation's state, from its prompt to its last token."""

from __future__ import annotations

import time

from tokenloom_engine.block_manager import BlockHash
from tokenloom_engine.choice import Choice
from tokenloom_engine.constraints.base import Captures
from tokenloom_engine.constraints.factory import Lease
from tokenloom_engine.constraints.outlook import Outlook, Path
from tokenloom_engine.drafts import Drafter, Guess
from tokenloom_engine.held_constraint import ConstraintFailedError, HeldConstraint
from tokenloom_engine.logits_processors import LeasedProcessor
from tokenloom_engine.messages import FinishReason, SequenceOutput, Submit
from tokenloom_engine.report import Report
from tokenloom_engine.vocabulary import Vocabulary

MAX_FORCED = 64
"""Most forced tokens that join a decoding sequence's forward: its neighbours wait for them. Those
that stand at the beginning are computed with the prompt, in chunks as it is."""


class Sequence:
    """The prompt and what was generated, what of it is computed, and what is still to report.

    `ids` holds the prompt, the generated tokens and, at its end, tokens that the constraint
    forced. A step computes some of `ids[num_computed:]`; when it reaches the end, the next
    token is drawn. Whoever lost its blocks starts again at `num_computed = 0`: prefill, decode,
    forced tokens and recomputation are one thing.
    """

    def __init__(self, submit: Submit, vocabulary: Vocabulary) -> None:
        self.submit = submit
        self.ids = list(submit.prompt_ids)
        self.prompt_len = len(self.ids)
        self.num_computed = 0
        self.num_scored = 1 if submit.logprobs.prompt else self.prompt_len
        """ids[num_scored:] wait for their log-probabilities, from the logits before each."""
        self.prefill_end = self.prompt_len
        """Below this the sequence is prefilling and yields to those that decode."""
        self.block_table: list[int] = []
        self.block_hashes: list[BlockHash] = []
        """Of the first full blocks of `ids`, as many as were asked for."""
        self.num_cached_blocks = 0
        """How many blocks of its table the prefix cache knows."""
        self.constraint: HeldConstraint | None = None
        self.processors: list[LeasedProcessor] = []
        self.drafter: Drafter | None = None
        """Guesses what follows, if that is wanted and can be verified."""
        self.is_late = False
        """Whether it sits out a step because its mask was not ready."""
        self.ending: FinishReason | None = None
        """Set when no more tokens are drawn, though some may still wait for their scores."""
        self.started_at: float | None = None
        self._vocabulary = vocabulary
        self._stop_token_ids = frozenset(submit.stopping.stop_token_ids)
        self._report = Report(submit, vocabulary)
        self._num_accepted = 0

    @property
    def end_token_ids(self) -> frozenset[int]:
        """The tokens that end the text: the vocabulary's EOS, and those of the request."""
        return self._vocabulary.eos_token_ids | self._stop_token_ids

    @property
    def num_generated(self) -> int:
        """Generated tokens, forced ones included."""
        return len(self.ids) - self.prompt_len

    @property
    def is_prefilling(self) -> bool:
        """Whether the prompt, or after a preemption all that came before it, is not in yet."""
        return self.num_computed < self.prefill_end

    @property
    def num_to_compute(self) -> int:
        """Tokens that the forward must still see before anything new can be said."""
        end = len(self.ids) if self.ending is None else len(self.ids) - 1
        return end - self.num_computed

    @property
    def needs_mask(self) -> bool:
        """Whether the constraint must still be asked before the next token is drawn."""
        return self.constraint is not None and self.ending is None and self.constraint.needs_mask

    @property
    def has_mask(self) -> bool:
        """Whether it is known what may be drawn."""
        return self.constraint is None or self.constraint.is_ready

    @property
    def is_finished(self) -> bool:
        """Whether the last output is made."""
        return self._report.is_finished

    def constrain(self, lease: Lease) -> None:
        """Take a constraint, with the mask of its first state."""
        self.constraint = HeldConstraint(lease, in_runs=self.submit.forced_tokens)
        self.add_forced_tokens()

    def start(self, num_cached: int) -> None:
        """Join the batch, with so many tokens already in the blocks of the prefix cache."""
        self.num_computed = num_cached
        self.prefill_end = len(self.ids)
        if self.started_at is None:
            self.started_at = time.monotonic()
            self._report.start(self.started_at, min(num_cached, self.prompt_len))

    def preempt(self) -> None:
        """Forget what was computed; tokens, text and constraint stay."""
        self.num_computed = 0
        self.block_table = []
        self.num_cached_blocks = 0

    def score(self, choice: Choice) -> None:
        """Take the log-probability of ids[num_scored], a prompt token or a forced one."""
        if self.num_scored < self.prompt_len:
            self._report.add_prompt_token(choice)
        else:
            self._say(choice, forced=True)
        self.num_scored += 1
        if self.is_finished:
            return  # a stop string ended it just now
        if self.ending is not None and self.num_scored == len(self.ids):
            self._finish(self.ending)

    def accept(self, choice: Choice, *, is_extra: bool = False) -> None:
        """Take a drawn token: report it, advance the constraint.

        `is_extra`: it is not the first one of its forward.
        """
        self.ids.append(choice.id)
        self._num_accepted += is_extra
        self.num_scored += 1
        stopping = self.submit.stopping
        if not self._advance_constraint([choice.id]):
            return
        self._say(choice, forced=choice.is_forced)
        if self.is_finished:
            return
        is_eos = choice.id in self._vocabulary.eos_token_ids
        if (is_eos and (self.constraint is not None or not stopping.ignore_eos)) or (
            choice.id in self._stop_token_ids and self.num_generated >= stopping.min_new_tokens
        ):
            self._finish("eos_token")
        elif self.constraint is not None and self.constraint.is_terminated:
            self._finish("eos_token")  # the grammar is complete; no forward to hear EOS said
        elif self.num_generated >= stopping.max_new_tokens:
            self._finish("length")

    def add_forced_tokens(self) -> None:
        """Append the tokens that the constraint leaves no choice about. Its mask must be ready."""
        if self.constraint is None:
            return
        try:
            forced = self.constraint.forced_tokens() if self.constraint.in_runs else []
        except ConstraintFailedError as error:
            self._fail_by_constraint(error)
            return
        most = self.submit.stopping.max_new_tokens - self.num_generated
        if self.started_at is not None:
            most = min(most, MAX_FORCED)
        forced = forced[:most]
        ends = self.end_token_ids
        end = next((i for i, id in enumerate(forced) if id in ends), len(forced))
        forced = forced[: end + 1]  # a grammar may name such a token; it ends the text as always
        if forced and self._advance_constraint(forced):
            self._append_forced(forced)
        if not self.is_finished and self.ending is None and self.constraint.is_terminated:
            self._finish("eos_token")

    def guess(self, least: float) -> Guess:
        """What may follow what it knows, where it can be verified and has odds of `least`."""
        if self.drafter is None or self.ending is not None:
            return Guess()
        if self.constraint is not None and not self.constraint.can_look_ahead:
            return Guess()
        room = self.submit.stopping.max_new_tokens - self.num_generated - 1  # one is drawn anyway
        return self.drafter.guess(room, least)

    def drafts(self, guessed: list[int]) -> tuple[int, ...]:
        """Those of its guess's tokens that may follow, as far as can be told."""
        ends = self.end_token_ids
        drafts = guessed[: next((i for i, id in enumerate(guessed) if id in ends), len(guessed))]
        if drafts and self.constraint is not None:
            try:
                drafts = drafts[: self.constraint.count_valid(drafts)]
            except ConstraintFailedError as error:
                self._fail_by_constraint(error)
                return ()
        return tuple(drafts)

    def path(self, drafts: tuple[int, ...]) -> Path:
        """Where the constraint comes from and is to look."""
        return Path(self.ids[self.prompt_len :], drafts)

    def outlooks(self, drafts: tuple[int, ...]) -> list[Outlook] | None:
        """What may be drawn next, and then after each draft; None is anything, everywhere.

        The mask must be ready. They may be fewer than the drafts: what follows is not drawn in
        this step. Ends the sequence if its constraint cannot say.
        """
        if self.constraint is None:
            return None
        try:
            return self.constraint.outlooks(len(drafts))
        except ConstraintFailedError as error:
            self._fail_by_constraint(error)
            return []

    def fail(self, message: str) -> None:
        """End with an error."""
        self._report.fail(message)

    def refuse(self, message: str) -> None:
        """End before the start: the request itself is wrong."""
        self._report.refuse(message)

    def take_output(self) -> SequenceOutput | None:
        """What there is to say since the last call, if anything."""
        return self._report.take()

    def _append_forced(self, forced: list[int]) -> None:
        assert self.constraint is not None
        self.ids.extend(forced)
        if self.constraint.is_terminated or forced[-1] in self.end_token_ids:
            self.ending = "eos_token"
        elif self.num_generated >= self.submit.stopping.max_new_tokens:
            self.ending = "length"
        if self.submit.logprobs.tokens or self.submit.logprobs.top_n_tokens:
            return  # they are reported when the next forward has scored them
        for id in forced:
            self.num_scored += 1
            self._say(Choice(id), forced=True)
            if self.is_finished:
                return
        if self.ending is not None:
            self._finish(self.ending)

    def _advance_constraint(self, ids: list[int]) -> bool:
        if self.constraint is None:
            return True
        try:
            self.constraint.advance(ids)
        except ConstraintFailedError as error:
            self._fail_by_constraint(error)
            return False
        return True

    def _fail_by_constraint(self, error: ConstraintFailedError) -> None:
        self.fail(f"the constraint failed: {error}")

    def _say(self, choice: Choice, *, forced: bool) -> None:
        self._report.add(choice, forced=forced)
        if self._report.is_stopped:
            self._finish("stop_sequence")

    def _finish(self, reason: FinishReason) -> None:
        captures: Captures = {}
        if self.constraint is not None:  # after a stop string, more may have been forced
            captures = self.constraint.captures(self.num_generated - self._report.num_tokens)
        self._report.finish(reason, self._num_accepted, captures)
