"""The bodies that the generate routes return, as TGI has them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NotRequired

from typing_extensions import TypedDict

from tokenloom_engine.messages import Finish, FinishReason, Token, TopToken
from tokenloom_router.request import GenerateResponse, Generation, ValidRequest


class PrefillTokenBody(TypedDict):
    """A token of the prompt."""

    id: int
    text: str
    logprob: float | None


class TokenBody(TypedDict):
    """A generated token. `forced` stands only where the grammar left no other choice, `temperature`
    only where it said at which one to draw, `masked` (in top_tokens) only where it did not allow
    the token.
    """

    id: int
    text: str
    logprob: float | None
    special: bool
    forced: NotRequired[bool]
    temperature: NotRequired[float]
    masked: NotRequired[bool]


class ConstraintBody(TypedDict):
    """What `details` say of a constraint and of token healing, where there is something to say."""

    forced_tokens: NotRequired[int]
    """How many of the generated tokens the grammar forced."""
    healed_tokens: NotRequired[int]
    """How many tokens of the prompt were generated anew."""
    captures: NotRequired[dict[str, str | list[str]]]
    """The texts of the grammar's named parts."""


class SequenceBody(ConstraintBody):
    """One of the sequences that `best_of` generated besides the best."""

    generated_text: str
    finish_reason: FinishReason
    generated_tokens: int
    seed: int | None
    prefill: list[PrefillTokenBody]
    tokens: list[TokenBody]
    top_tokens: NotRequired[list[list[TokenBody]]]


class DetailsBody(ConstraintBody):
    """How the text came about."""

    finish_reason: FinishReason
    generated_tokens: int
    seed: int | None
    prefill: list[PrefillTokenBody]
    tokens: list[TokenBody]
    best_of_sequences: NotRequired[list[SequenceBody]]
    top_tokens: NotRequired[list[list[TokenBody]]]


class GenerateResponseBody(TypedDict):
    """The generated text; `details` only if they were asked for."""

    generated_text: str
    details: NotRequired[DetailsBody]
    warnings: NotRequired[list[str]]
    """What the client should know of its request, though it was served."""


def token_body(token: Token | TopToken) -> TokenBody:
    """One token."""
    body: TokenBody = {
        "id": token.id,
        "text": token.text,
        "logprob": token.logprob,
        "special": token.special,
    }
    if isinstance(token, Token) and token.forced:
        body["forced"] = True
    if isinstance(token, Token) and token.temperature is not None:
        body["temperature"] = token.temperature
    if isinstance(token, TopToken) and token.masked:
        body["masked"] = True
    return body


def response_body(
    response: GenerateResponse, *, prefix: str, with_details: bool
) -> GenerateResponseBody:
    """A whole response. `prefix` stands in front of each text."""
    best, *others = response.generations
    body: GenerateResponseBody = {"generated_text": prefix + best.finish.generated_text}
    if with_details:
        request = response.request
        siblings = [_sequence(other, request, prefix) for other in others]
        body["details"] = _details(best, request, siblings)
    if response.request.warnings:
        body["warnings"] = response.request.warnings
    return body


def add_constraint_details(body: ConstraintBody, request: ValidRequest, finish: Finish) -> None:
    """Say of one sequence's constraint what there is to say."""
    if request.constraint is not None:
        body["forced_tokens"] = finish.forced_tokens
    if request.healed_tokens:
        body["healed_tokens"] = request.healed_tokens
    if finish.captures:
        body["captures"] = finish.captures


def _details(
    generation: Generation, request: ValidRequest, others: list[SequenceBody]
) -> DetailsBody:
    body: DetailsBody = {
        "finish_reason": generation.finish.reason,
        "generated_tokens": generation.finish.generated_tokens,
        "seed": generation.seed,
        "prefill": _prefill(generation),
        "tokens": [token_body(token) for token in generation.tokens],
    }
    add_constraint_details(body, request, generation.finish)
    if others:
        body["best_of_sequences"] = others
    if (top_tokens := _top_tokens(generation.tokens)) is not None:
        body["top_tokens"] = top_tokens
    return body


def _sequence(generation: Generation, request: ValidRequest, prefix: str) -> SequenceBody:
    body: SequenceBody = {
        "generated_text": prefix + generation.finish.generated_text,
        "finish_reason": generation.finish.reason,
        "generated_tokens": generation.finish.generated_tokens,
        "seed": generation.seed,
        "prefill": _prefill(generation),
        "tokens": [token_body(token) for token in generation.tokens],
    }
    add_constraint_details(body, request, generation.finish)
    if (top_tokens := _top_tokens(generation.tokens)) is not None:
        body["top_tokens"] = top_tokens
    return body


def _prefill(generation: Generation) -> list[PrefillTokenBody]:
    return [
        {"id": token.id, "text": token.text, "logprob": token.logprob}
        for token in generation.prompt
    ]


def _top_tokens(tokens: Sequence[Token]) -> list[list[TokenBody]] | None:
    """None if they were not asked for."""
    if all(token.top is None for token in tokens):
        return None
    return [[token_body(top) for top in token.top or ()] for token in tokens]
