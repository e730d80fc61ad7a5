"""Validation: the only way from a GenerateRequest to a ValidRequest."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import anyio
import msgspec

from tokenloom_engine.constraints.base import InvalidConstraintError, TokenizerFacts
from tokenloom_engine.constraints.spec import ConstraintSpec
from tokenloom_engine.constraints.trials.trials import (
    Admission,
    Trials,
    TrialsBusyError,
    TrialsEndedError,
)
from tokenloom_engine.messages import LogprobParams, ModelInfo, StoppingParams
from tokenloom_router.chat_template import ChatPrompt, ChatTemplate
from tokenloom_router.config import RouterConfig
from tokenloom_router.errors import (
    EngineStartError,
    OverloadedError,
    TooLongError,
    TooLongPromptError,
    UnavailableError,
    ValidationError,
)
from tokenloom_router.healing import HealedPrompt, TokenHealing
from tokenloom_router.limits import Limits
from tokenloom_router.parameters import (
    MAX_SEED,
    has_draws,
    sampling_params,
    validate_best_of,
    validate_parameters,
    validate_text,
)
from tokenloom_router.request import GenerateRequest, ValidRequest
from tokenloom_router.sampling_defaults import SamplingDefaults
from tokenloom_router.tokenizer import Tokenizer, TokenSpan

logger = logging.getLogger(__name__)

MAX_TRIAL_SECONDS = 300.0
"""How long a request may wait for the trial of its grammar, in the queue and out of it."""

T = TypeVar("T")


class Validation:
    """Tokenizes and validates requests in worker threads. One per loaded model."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        chat_template: ChatTemplate,
        constraints: Trials | None,
        limits: Limits,
        config: RouterConfig,
        sampling_defaults: SamplingDefaults,
    ) -> None:
        """`constraints` is None if constraints are refused."""
        self.sampling_defaults = sampling_defaults
        self.limits = limits
        self.tokenizer = tokenizer
        self.chat_template = chat_template
        self._constraints = constraints
        self._healing = TokenHealing(tokenizer)
        self._forced_tokens = not config.disable_forced_tokens
        self._tokenizing = anyio.CapacityLimiter(config.validation_workers)

    @classmethod
    async def load(cls, config: RouterConfig, model: ModelInfo) -> Validation:
        """Read the model's tokenizer. Raise EngineStartError if model and limits do not agree."""
        limits = Limits.resolve(config, model)
        defaults = _sampling_defaults(config, model)

        def read() -> tuple[Tokenizer, ChatTemplate, Trials | None]:
            tokenizer = Tokenizer(model.tokenizer_file)
            trials = None if config.disable_grammar_support else _trials(tokenizer, model, config)
            chat_template = ChatTemplate.load(
                model.model_path,
                tokenizer.special_texts,
                parses_control_tokens=config.parses_control_tokens,
                tokenizer_config=config.tokenizer_config_path,
            )
            return tokenizer, chat_template, trials

        try:
            tokenizer, chat_template, constraints = await anyio.to_thread.run_sync(
                read, abandon_on_cancel=True
            )
        except Exception as error:
            raise EngineStartError(
                f"cannot read the tokenizer {model.tokenizer_file}: {error}"
            ) from error
        return cls(tokenizer, chat_template, constraints, limits, config, defaults)

    def best_of(self, request: GenerateRequest) -> int:
        """Return how many sequences the request needs. Raise ValidationError if too many."""
        return validate_best_of(request, self.limits)

    async def validate(self, request: GenerateRequest) -> ValidRequest:
        """Return what the engine can run. Raise ValidationError at the first broken rule."""
        best_of = self.best_of(request)
        validate_parameters(request, self.limits)
        inputs, prompt_ids = await self._prompt(request)
        if request.truncate is not None:
            prompt_ids = prompt_ids[-request.truncate :]
        healed = await self._heal(prompt_ids) if request.token_healing else None
        if healed is not None:
            prompt_ids = healed.ids
        max_new_tokens = self._max_new_tokens(len(prompt_ids), request.max_new_tokens)
        if request.min_new_tokens > max_new_tokens:
            raise ValidationError(
                f"`min_new_tokens` must be <= {max_new_tokens}, for which there is room. "
                f"Given: {request.min_new_tokens}"
            )
        constraint, warnings = request.constraint, list[str]()
        if constraint is not None:
            constraint, warnings = await self._admit(constraint, request.client)
        if healed is not None:
            constraint = healed.constraint(constraint)
        seed = _seed(request)
        return ValidRequest(
            prompt_ids=prompt_ids,
            inputs=inputs,
            sampling=sampling_params(request, seed, self.limits),
            stopping=StoppingParams(
                max_new_tokens=max_new_tokens,
                stop=request.stop,
                stop_scope=request.stop_scope,
                stop_token_ids=request.stop_token_ids,
                ignore_eos=request.ignore_eos,
                min_new_tokens=request.min_new_tokens,
            ),
            logprobs=_logprobs(request, best_of),
            constraint=constraint,
            best_of=best_of,
            n=request.n,
            seed=seed,
            forced_tokens=self._forced_tokens and request.forced_tokens,
            logits_processors=request.logits_processors,
            healed_tokens=0 if healed is None else healed.num_healed,
            warnings=warnings,
        )

    async def tokenize(self, text: str, *, add_special_tokens: bool) -> list[TokenSpan]:
        """Return the tokens of `text` with their places in it."""
        validate_text("inputs", text)

        def spans() -> list[TokenSpan]:
            return self.tokenizer.spans(text, add_special_tokens=add_special_tokens)

        return await _in_worker(spans, self._tokenizing)

    async def tokenize_chat(self, chat: ChatPrompt) -> tuple[str, list[TokenSpan]]:
        """Return the text of a chat's prompt, and its tokens with their places in it."""
        pieces = await self.chat_template.render(chat)
        text = "".join(piece.text for piece in pieces)
        spans = await _in_worker(lambda: self.tokenizer.piece_spans(pieces), self._tokenizing)
        return text, spans

    def close(self) -> None:
        """Let the helper processes end."""
        self.chat_template.close()
        if self._constraints is not None:
            self._constraints.close()

    async def _prompt(self, request: GenerateRequest) -> tuple[str, list[int]]:
        """The prompt's text, which is empty if it was given as token ids, and its tokens."""
        tokenizer, text = self.tokenizer, request.inputs
        if request.prompt_ids is not None:
            return "", list(request.prompt_ids)
        if request.chat is not None:
            pieces = await self.chat_template.render(request.chat)
            text = "".join(piece.text for piece in pieces)
            ids = await _in_worker(lambda: tokenizer.encode_pieces(pieces), self._tokenizing)
        else:
            special = request.add_special_tokens
            ids = await _in_worker(
                lambda: tokenizer.encode(text, add_special_tokens=special), self._tokenizing
            )
        if not ids:  # a normalizer may leave nothing of white space
            raise ValidationError("`inputs` cannot be empty")
        return text, ids

    async def _heal(self, prompt_ids: list[int]) -> HealedPrompt:
        if self._constraints is None:
            raise ValidationError("`token_healing` is not supported without grammar support")
        return await _in_worker(lambda: self._healing.heal(prompt_ids), self._tokenizing)

    def _max_new_tokens(self, input_length: int, given: int | None) -> int:
        """Return the number given, which must fit, or else as many as fit."""
        limits = self.limits
        max_new_tokens = max(0, limits.max_total_tokens - input_length) if given is None else given
        if input_length + max_new_tokens > limits.max_total_tokens:
            raise TooLongError(input_length, max_new_tokens, limits.max_total_tokens)
        if input_length > limits.max_input_tokens:
            raise TooLongPromptError(input_length, limits.max_input_tokens)
        return max_new_tokens

    async def _admit(self, spec: ConstraintSpec, client: str) -> Admission:
        constraints = self._constraints
        if constraints is None:
            raise ValidationError("grammar is not supported")
        validate_text("grammar", spec.value, spec.whitespace_pattern or "")
        trial = asyncio.wrap_future(constraints.start(spec, client))
        try:
            with anyio.fail_after(MAX_TRIAL_SECONDS):
                return await trial
        except InvalidConstraintError as error:
            raise ValidationError(f"grammar is not valid: {error}") from error
        except (TimeoutError, TrialsBusyError):
            raise OverloadedError from None
        except TrialsEndedError:
            raise UnavailableError("Grammars cannot be validated at the moment") from None


def _sampling_defaults(config: RouterConfig, model: ModelInfo) -> SamplingDefaults:
    """What the model has to say, which is told once."""
    if not config.generation_config:
        return SamplingDefaults()
    try:
        defaults = SamplingDefaults.read(Path(model.model_path))
    except (OSError, ValueError) as error:
        raise EngineStartError(
            f"the model's generation_config.json is wrong: {error}; --generation-config none "
            "serves the model without it"
        ) from error
    if told := str(defaults):
        logger.info(
            "OpenAI's routes sample with the defaults of the model's generation_config.json, "
            "unless a request says otherwise (--generation-config none: never): %s",
            told,
        )
    return defaults


def _trials(tokenizer: Tokenizer, model: ModelInfo, config: RouterConfig) -> Trials:
    facts = TokenizerFacts(
        json=tokenizer.json,
        vocab_size=model.vocab_size,
        eos_token_ids=tuple(sorted(model.eos_token_ids)),
        num_threads=1,
    )
    trials = Trials(facts, config.constraints)
    trials.wait_until_ready()
    return trials


async def _in_worker(work: Callable[[], T], limiter: anyio.CapacityLimiter) -> T:
    """Run tokenizer work in a thread. A client that leaves does not wait for its end."""
    try:
        return await anyio.to_thread.run_sync(work, abandon_on_cancel=True, limiter=limiter)
    except Exception as error:
        raise ValidationError(f"tokenizer error {error}") from error


def _seed(request: GenerateRequest) -> int | None:
    if not has_draws(request):
        return None
    return secrets.randbelow(MAX_SEED + 1) if request.seed is None else request.seed


def _logprobs(request: GenerateRequest, best_of: int) -> LogprobParams:
    if best_of == 1 or request.logprobs.tokens:
        return request.logprobs
    return msgspec.structs.replace(request.logprobs, tokens=True)  # the best is chosen by them
