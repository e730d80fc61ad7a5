"""How many tokens a request took."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NotRequired

from typing_extensions import TypedDict

from tokenloom_router.stream import Stream


class PromptTokensDetails(TypedDict):
    """`cached_tokens` is how many prompt tokens were not computed anew."""

    cached_tokens: int


class CompletionTokensDetails(TypedDict):
    """`forced_tokens` is how many tokens the grammars left no choice about."""

    reasoning_tokens: int
    forced_tokens: NotRequired[int]


class UsageBody(TypedDict):
    """Tokens of prompts and choices; a prompt counts once, whatever `n` is."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails


class Usage:
    """Counts the tokens of a request's sequences as they come."""

    def __init__(self, prompts: Sequence[Stream]) -> None:
        """`prompts`: one stream of each prompt."""
        self._prompts = prompts
        self._prompt_tokens = sum(stream.request.input_length for stream in prompts)
        self._has_constraint = any(stream.request.constraint for stream in prompts)
        self._completion_tokens = 0
        self._forced_tokens = 0
        self.reasoning_tokens = 0
        """Of the generated tokens, those before the answer."""

    def add(self, num_tokens: int, num_forced: int) -> None:
        """Count tokens that were generated."""
        self._completion_tokens += num_tokens
        self._forced_tokens += num_forced

    def body(self) -> UsageBody:
        """What was counted so far."""
        details: CompletionTokensDetails = {"reasoning_tokens": self.reasoning_tokens}
        if self._has_constraint:
            details["forced_tokens"] = self._forced_tokens
        return {
            "prompt_tokens": self._prompt_tokens,
            "completion_tokens": self._completion_tokens,
            "total_tokens": self._prompt_tokens + self._completion_tokens,
            "prompt_tokens_details": {
                "cached_tokens": sum(stream.cached_tokens for stream in self._prompts)
            },
            "completion_tokens_details": details,
        }
