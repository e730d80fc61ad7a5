"""What there is to say of a sequence: its tokens, as they become certain, and how it ended."""

from __future__ import annotations

import msgspec

from tokenloom_engine.choice import Choice
from tokenloom_engine.constraints.base import Captures
from tokenloom_engine.generated_text import GeneratedText
from tokenloom_engine.messages import (
    Finish,
    FinishReason,
    SequenceOutput,
    Submit,
    Token,
    TopToken,
)
from tokenloom_engine.vocabulary import Vocabulary


class Report:
    """Collects outputs, one for each time that somebody asks.

    What is noted costs nothing; it becomes text when it is said.
    """

    def __init__(self, submit: Submit, vocabulary: Vocabulary) -> None:
        self._submit = submit
        self._vocabulary = vocabulary
        self._text = GeneratedText(submit, vocabulary)
        self._prompt_choices: list[Choice] = []
        self._unsaid: list[tuple[Choice, bool, bool]] = []
        self._output = SequenceOutput(submit.id)
        self._num_taken = 0
        self._num_forced = 0
        self._num_accepted = 0

    @property
    def num_tokens(self) -> int:
        """Generated tokens that were said."""
        return self._num_taken + len(self._output.tokens)

    @property
    def is_finished(self) -> bool:
        """Whether the last output is made."""
        output = self._output
        return bool(output.finish or output.error or output.refusal)

    @property
    def is_stopped(self) -> bool:
        """Whether a stop string ended the text."""
        return self._text.is_stopped

    def start(self, at: float, num_cached: int) -> None:
        """Say when the sequence joined the batch, and how much of its prompt was known."""
        self._output.started_at = at
        self._output.cached_tokens = num_cached

    def fail(self, message: str, *, by_constraint: bool) -> None:
        """End with an error. See `SequenceOutput`."""
        self._output.error = message
        self._output.is_constraint_error = by_constraint

    def refuse(self, message: str) -> None:
        """End before the start: the request itself is wrong."""
        self._output.refusal = message

    def note_prompt_token(self, choice: Choice) -> None:
        """Take what the logits said of a token of the prompt."""
        self._prompt_choices.append(choice)

    def note(self, choice: Choice, *, forced: bool, is_extra: bool = False) -> None:
        """Take a generated token. `is_extra`: it is not the first one drawn in its forward."""
        self._unsaid.append((choice, forced, is_extra))

    def say(self) -> None:
        """Put what was noted into words, up to a stop string."""
        unsaid, self._unsaid = self._unsaid, []
        for choice, forced, is_extra in unsaid:
            if self.is_stopped:
                break
            may_stop = self.num_tokens + 1 >= self._submit.stopping.min_new_tokens
            text = self._text.push(choice.id, may_stop=may_stop)
            special = self._vocabulary.is_special(choice.id)
            top = self._top(choice)
            self._output.tokens.append(
                Token(choice.id, text, choice.logprob, special, forced, top, choice.temperature)
            )
            self._num_forced += forced
            self._num_accepted += is_extra

    def finish(self, reason: FinishReason, captures: Captures) -> None:
        """End."""
        tokens = self._output.tokens
        if tokens and not tokens[-1].special and (tail := self._text.flush()):
            tokens[-1] = msgspec.structs.replace(tokens[-1], text=tokens[-1].text + tail)
        self._output.finish = Finish(
            reason,
            self._text.whole,
            self.num_tokens,
            self._num_forced,
            self._num_accepted,
            captures,
        )

    def take(self) -> SequenceOutput | None:
        """What there is to say since the last call, if anything."""
        output = self._output
        if not output.tokens and not self.is_finished:
            return None
        if self._submit.logprobs.prompt and self._num_taken == 0:
            output.prompt = self._prompt_tokens()
        self._num_taken += len(output.tokens)
        if not self.is_finished:
            self._output = SequenceOutput(self._submit.id)
        return output

    def _prompt_tokens(self) -> list[Token]:
        first = self._submit.prompt_ids[0]
        scored = [
            Token(c.id, self._vocabulary.text(c.id), c.logprob, top=self._top(c))
            for c in self._prompt_choices
        ]
        return [Token(first, self._vocabulary.text(first)), *scored]

    def _top(self, choice: Choice) -> list[TopToken] | None:
        """The most probable tokens in a token's place, if they were asked for."""
        if not choice.top:
            return None
        return [
            TopToken(
                other.id,
                self._vocabulary.text(other.id),
                other.logprob,
                self._vocabulary.is_special(other.id),
                other.masked,
            )
            for other in choice.top
        ]
