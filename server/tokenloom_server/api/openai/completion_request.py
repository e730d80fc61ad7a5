"""The body of /v1/completions, and its meaning for the router."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import Annotated, Any

from pydantic import Field

from tokenloom_engine.messages import LogprobParams
from tokenloom_router.errors import ValidationError
from tokenloom_router.request import GenerateRequest
from tokenloom_router.sampling_defaults import SamplingDefaults
from tokenloom_server.api.openai.errors import Words
from tokenloom_server.api.openai.sampling import MAX_N, MAX_TOP_LOGPROBS, SamplingFields

DEFAULT_MAX_TOKENS = 16
"""OpenAI's."""
NAMES = {
    "inputs": "prompt",
    "max_new_tokens": "max_tokens",
    "min_new_tokens": "min_tokens",
    "top_n_tokens": "logprobs",
    "truncate": "truncate_prompt_tokens",
}

Prompt = str | tuple[int, ...]


class CompletionBody(SamplingFields):
    """Prompts, and how to go on from them."""

    prompt: Annotated[
        str | list[Any],
        Field(
            union_mode="left_to_right",
            description="A text, a list of texts, a list of token ids, or a list of such lists",
        ),
    ]
    max_tokens: int | None = Field(
        default=None,
        ge=0,
        lt=2**32,
        description="Most tokens to generate; 16 if absent. 0 only with `echo`",
    )
    best_of: int | None = Field(
        default=None,
        ge=1,
        le=MAX_N,
        description="Generate so many, and return the `n` most probable; not in a stream",
    )
    echo: bool | None = Field(default=None, description="Put the prompt in front of the text")
    logprobs: int | None = Field(
        default=None,
        ge=0,
        le=MAX_TOP_LOGPROBS,
        description="Return log-probabilities, and those of so many most probable tokens",
    )
    suffix: str | None = Field(
        default=None, description="Must be absent: text cannot be inserted before a suffix"
    )
    add_special_tokens: bool | None = Field(
        default=None, description="false adds nothing to a prompt's text, as BOS (vLLM)"
    )

    @property
    def num_choices(self) -> int:
        """For each prompt."""
        return self.n or 1

    @property
    def num_sequences(self) -> int:
        """For each prompt: with `best_of`, more than there are choices."""
        return max(self.best_of or 1, self.num_choices)

    @property
    def words(self) -> Words:
        """What this route calls things."""
        named = self.constraint()
        return Words(NAMES, named[0] if named else "response_format")

    @cached_property
    def prompts(self) -> list[Prompt]:
        """The prompts. Raise ValidationError, naming what is wrong with them."""
        prompt = self.prompt
        if isinstance(prompt, str):
            return [prompt]
        if not prompt:
            raise ValidationError("`prompt` must not be empty")
        kinds = set(map(type, prompt))
        if kinds == {int}:
            return [tuple(prompt)]
        if kinds == {str}:
            return list(prompt)
        if kinds == {list}:
            for index, ids in enumerate(prompt):
                _check_ids(f"`prompt` {index}", ids)
            return [tuple(ids) for ids in prompt]
        raise _no_id("`prompt`", prompt)

    def to_requests(self, defaults: SamplingDefaults) -> list[GenerateRequest]:
        """One for each prompt. Raises ValidationError."""
        self._refuse_combinations()
        generates = self.max_tokens != 0
        logprobs = LogprobParams(
            tokens=self.logprobs is not None or self.num_sequences > self.num_choices,
            top_n_tokens=self.logprobs or 0,
            prompt=bool(self.echo) and self.logprobs is not None,
            processed=self.logprobs_mode == "processed",
        )
        # Nothing to generate: one token is, and is not shown.
        most = DEFAULT_MAX_TOKENS if self.max_tokens is None else max(1, self.max_tokens)
        request = self.sampled_request(
            defaults, max_tokens=most, logprobs=logprobs, n=self.num_sequences
        )
        if not generates:
            request = replace(request, constraint=None, min_new_tokens=0)
        special = self.add_special_tokens is not False
        return [
            replace(request, inputs=prompt, add_special_tokens=special)
            if isinstance(prompt, str)
            else replace(request, prompt_ids=prompt)
            for prompt in self.prompts
        ]

    def _refuse_combinations(self) -> None:
        if self.suffix is not None:
            raise ValidationError("`suffix` is not supported")
        if self.max_tokens == 0 and not self.echo:
            raise ValidationError("`max_tokens` must be > 0 unless `echo` is true")
        if self.best_of is not None and self.best_of < self.num_choices:
            raise ValidationError("`best_of` must be >= `n`")
        if self.stream and self.num_sequences > self.num_choices:
            raise ValidationError("`best_of` must be `n` when streaming")
        if self.echo and self.truncate_prompt_tokens is not None:
            raise ValidationError("`echo` and `truncate_prompt_tokens` exclude each other")
        if self.echo and self.token_healing:
            raise ValidationError("`echo` and `token_healing` exclude each other")


def _check_ids(name: str, ids: list[object]) -> None:
    if not ids:
        raise ValidationError(f"{name} must not be empty")
    if set(map(type, ids)) != {int}:
        raise _no_id(name, ids)


def _no_id(name: str, ids: list[object]) -> ValidationError:
    wrong = next(id for id in ids if type(id) is not int)
    return ValidationError(
        f"{name} must have token ids (integers) or texts. Given: {repr(wrong)[:100]}"
    )
