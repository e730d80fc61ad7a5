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
    """Collects outputs, one for each time that somebody asks."""

    def __init__(self, submit: Submit, vocabulary: Vocabulary) -> None:
        self._submit = submit
        self._vocabulary = vocabulary
        self._text = GeneratedText(submit, vocabulary)
        self._prompt_tokens: list[Token] = []
        self._output = SequenceOutput(submit.id)
        self._num_taken = 0
        self._num_forced = 0

    @property
    def num_tokens(self) -> int:
        """Generated tokens that were reported."""
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

    def fail(self, message: str) -> None:
        """End with an error."""
        self._output.error = message

    def refuse(self, message: str) -> None:
        """End before the start: the request itself is wrong."""
        self._output.refusal = message

    def add_prompt_token(self, choice: Choice) -> None:
        """Say what the logits said of a token of the prompt."""
        text = self._vocabulary.text(choice.id)
        self._prompt_tokens.append(Token(choice.id, text, choice.logprob, top=self._top(choice)))

    def add(self, choice: Choice, *, forced: bool) -> None:
        """Say a generated token."""
        may_stop = self.num_tokens + 1 >= self._submit.stopping.min_new_tokens
        text = self._text.push(choice.id, may_stop=may_stop)
        special = self._vocabulary.is_special(choice.id)
        top = self._top(choice)
        self._output.tokens.append(
            Token(choice.id, text, choice.logprob, special, forced, top, choice.temperature)
        )
        self._num_forced += forced

    def finish(self, reason: FinishReason, num_accepted: int, captures: Captures) -> None:
        """End. `num_accepted`: drafts that were right."""
        tokens = self._output.tokens
        if tokens and not tokens[-1].special and (tail := self._text.flush()):
            tokens[-1] = msgspec.structs.replace(tokens[-1], text=tokens[-1].text + tail)
        self._output.finish = Finish(
            reason, self._text.whole, self.num_tokens, self._num_forced, num_accepted, captures
        )

    def take(self) -> SequenceOutput | None:
        """What there is to say since the last call, if anything."""
        output = self._output
        if not output.tokens and not self.is_finished:
            return None
        if self._submit.logprobs.prompt and self._num_taken == 0:
            first = self._submit.prompt_ids[0]
            output.prompt = [Token(first, self._vocabulary.text(first)), *self._prompt_tokens]
        self._num_taken += len(output.tokens)
        if not self.is_finished:
            self._output = SequenceOutput(self._submit.id)
        return output

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
