"""One generation's state, from its prompt to its last token."""

from __future__ import annotations

import logging
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
from tokenloom_engine.request_id import working_for
from tokenloom_engine.vocabulary import Vocabulary

logger = logging.getLogger(__name__)

MAX_FORCED = 64
"""Most forced tokens that join a decoding sequence's forward: its neighbours wait for them. Those
that stand at the beginning are computed with the prompt, in chunks as it is."""


class Sequence:
    """The prompt and what was generated, what of it is computed, and what is still to report.

    `ids` holds the prompt, the generated tokens and, at its end, tokens that the constraint
    forced. A step computes some of `ids[num_computed:]`; when it reaches the end, the next
    token is drawn. Whoever lost its blocks starts again at `num_computed = 0`: prefill, decode,
    forced tokens and recomputation are one thing.

    It takes tokens first, and puts them into words when `say` is called: a GPU computes meanwhile.
    Whether it ends is known of the tokens, but for a stop string.
    """

    def __init__(
        self, submit: Submit, vocabulary: Vocabulary, *, says_at_once: bool = True
    ) -> None:
        """`says_at_once`: it says what it takes by itself, and so knows of stop strings at once.

        One with stop strings and a constraint always does: what the constraint captured is read
        where the text stops, and not while it is asked what comes next.
        """
        self.submit = submit
        self.ids = list(submit.prompt_ids)
        self.prompt_len = len(self.ids)
        self.num_computed = 0
        self.num_scored = 1 if submit.logprobs.prompt else self.prompt_len
        """ids[num_scored:] wait for their log-probabilities, from the logits before each."""
        self.prefill_end = self.prompt_len
        """Below this the sequence is prefilling and yields to those that decode; 0 afterwards."""
        self.is_long = False
        """Whether the text is computed as one beyond the limit of the model's `RopeRanges`."""
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
        self.is_finished = False
        """Whether the last output is made."""
        self.has_left = False
        """Whether it said its last or its client went: nobody wants what a forward brings it."""
        self.started_at: float | None = None
        self._vocabulary = vocabulary
        self._stop_token_ids = frozenset(submit.stopping.stop_token_ids)
        self._report = Report(submit, vocabulary)
        stops_constraint = submit.constraint is not None and bool(submit.stopping.stop)
        self._says_at_once = says_at_once or stops_constraint
        self._problem: str | None = None
        self._is_constraint_problem = False
        """Why it cannot go on."""

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
    def forces_in_runs(self) -> bool:
        """Whether forced tokens are wanted all at once, and not each by a forward of its own."""
        return self.constraint is not None and self.constraint.in_runs

    @property
    def is_over(self) -> bool:
        """Whether nothing is to be computed for it any more, though some may be unsaid."""
        if self.is_finished or self._problem is not None:
            return True
        return self.ending is not None and self.num_scored == len(self.ids)

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
        self.is_late = False

    def lengthen(self) -> None:
        """Forget what was computed, and be a long text from now on."""
        self.preempt()
        self.is_long = True
        self.block_hashes = []

    def score(self, choice: Choice) -> None:
        """Take the log-probability of ids[num_scored], a prompt token or a forced one."""
        if self.num_scored < self.prompt_len:
            self._report.note_prompt_token(choice)
        else:
            self._report.note(choice, forced=True)
        self.num_scored += 1
        if self._says_at_once:
            self.say()

    def accept(self, choice: Choice, *, is_extra: bool = False) -> None:
        """Take a drawn token, and advance the constraint.

        `is_extra`: it is not the first one of its forward.
        """
        self.ids.append(choice.id)
        self.num_scored += 1
        if self._advance_constraint([choice.id]):
            self._report.note(choice, forced=choice.is_forced, is_extra=is_extra)
            self.ending = self._ending_after(choice.id)
        if self._says_at_once:
            self.say()

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
        if not self.is_over and self.ending is None and self.constraint.is_terminated:
            self.ending = "eos_token"
        if self._says_at_once:
            self.say()

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
            outlooks = self.constraint.outlooks(len(drafts))
        except ConstraintFailedError as error:
            self._fail_by_constraint(error)
            return []
        if self.constraint.is_terminated:  # it said so only when its mask was there
            self.ending = "eos_token"
            if self._says_at_once:
                self.say()
            return []
        return outlooks

    def say(self) -> None:
        """Put into words what it took, and end if that was all."""
        if self.is_finished:
            return
        self._report.say()
        if self._report.is_stopped:
            self._finish("stop_sequence")
        elif self._problem is not None:
            self._report.fail(self._problem, by_constraint=self._is_constraint_problem)
            self.is_finished = True
        elif self.ending is not None and self.is_over:
            self._finish(self.ending)

    def fail(self, message: str, *, by_constraint: bool = False) -> None:
        """End with an error, after what there is to say. See `SequenceOutput`."""
        self._problem = message
        self._is_constraint_problem = by_constraint
        if self._says_at_once:
            self.say()

    def break_off(self, error: Exception) -> None:
        """End with an error that nobody expected, and log where it comes from."""
        with working_for(self.submit.request_id):
            logger.error("a sequence failed, and ends", exc_info=error)
        self.fail(f"{type(error).__name__}: {error}")

    def refuse(self, message: str) -> None:
        """End before the start: the request itself is wrong."""
        self._report.refuse(message)
        self.is_finished = True

    def take_output(self) -> SequenceOutput | None:
        """What there is to say since the last call, if anything."""
        return self._report.take()

    def _append_forced(self, forced: list[int]) -> None:
        assert self.constraint is not None
        logprobs = self.submit.logprobs
        are_scored = self.num_scored == len(self.ids)
        self.ids.extend(forced)
        if self.constraint.is_terminated or forced[-1] in self.end_token_ids:
            self.ending = "eos_token"
        elif self.num_generated >= self.submit.stopping.max_new_tokens:
            self.ending = "length"
        if logprobs.tokens or logprobs.top_n_tokens or not are_scored:
            return  # they are reported when the next forward has scored them
        for id in forced:
            self._report.note(Choice(id), forced=True)
        self.num_scored += len(forced)

    def _ending_after(self, id: int) -> FinishReason | None:
        """Whether a token that was drawn is the last one, and why."""
        stopping = self.submit.stopping
        is_eos = id in self._vocabulary.eos_token_ids
        if (is_eos and (self.constraint is not None or not stopping.ignore_eos)) or (
            id in self._stop_token_ids and self.num_generated >= stopping.min_new_tokens
        ):
            return "eos_token"
        if self.constraint is not None and self.constraint.is_terminated:
            return "eos_token"  # the grammar is complete; no forward to hear EOS said
        return "length" if self.num_generated >= stopping.max_new_tokens else None

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
        self.fail(f"the constraint failed: {error}", by_constraint=error.is_own)

    def _finish(self, reason: FinishReason) -> None:
        captures: Captures = {}
        if self.constraint is not None:  # after a stop string, more may have been forced
            with working_for(self.submit.request_id):
                captures = self.constraint.captures(self.num_generated - self._report.num_tokens)
        self._report.finish(reason, captures)
        self.is_finished = True
