"""The rules for a request's parameters that need neither tokenizer nor model.

They are TGI's, in TGI's order and words, so that its clients meet the errors that they know.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import msgspec

from tokenloom_engine.constraints.lark import sets_temperature
from tokenloom_engine.messages import LogitsProcessorSpec, SamplingParams
from tokenloom_router.errors import ValidationError
from tokenloom_router.limits import Limits
from tokenloom_router.request import GenerateRequest

MAX_SEED = 2**64 - 1
MAX_LOGITS_PROCESSORS = 8
MAX_ARGS_DEPTH = 16
"""Nesting of a logits processor's arguments."""
MAX_STOP_CHARACTERS = 4096
MAX_STOP_TOKEN_IDS = 128
MAX_BIASES = 1024
"""Each costs time in every step."""
_FLOAT32_MAX = 3.4028234663852886e38
_FLOAT32_TINY = 1.1754943508222875e-38


def is_sampling(request: GenerateRequest) -> bool:
    """Whether the request asks for draws: `do_sample`, or any parameter that shapes one."""
    shaping = (
        request.temperature,
        request.top_k,
        request.top_p,
        request.typical_p,
        request.min_p,
    )
    return request.do_sample or any(value is not None for value in shaping)


def has_draws(request: GenerateRequest) -> bool:
    """Whether tokens are drawn, if only where the grammar sets a temperature."""
    constraint = request.constraint
    return is_sampling(request) or (constraint is not None and sets_temperature(constraint))


def validate_best_of(request: GenerateRequest, limits: Limits) -> int:
    """Return the number of sequences that the request needs, and so of its permits."""
    best_of = 1 if request.best_of is None else request.best_of
    if request.stream and best_of != 1:
        raise ValidationError("`best_of` != 1 is not supported when streaming tokens")
    if best_of > 1 and limits.max_best_of == 1:
        raise ValidationError("`best_of` != 1 is not allowed for this endpoint")
    if not 1 <= best_of <= limits.max_best_of:
        raise ValidationError(
            f"`best_of` must be > 0 and <= {limits.max_best_of}. Given: {best_of}"
        )
    return best_of


def validate_parameters(request: GenerateRequest, limits: Limits) -> None:
    """Raise ValidationError for the first parameter that breaks a rule."""
    if request.stream and request.logprobs.prompt:
        raise ValidationError(
            "`decoder_input_details` == true is not supported when streaming tokens"
        )
    best_of = request.best_of or 1
    if best_of > 1 and not has_draws(request):
        raise ValidationError("you must use sampling when `best_of` is > 1")
    _validate_numbers(request)
    _validate_logit_bias(request.logit_bias, limits.vocab_size)
    _validate_stop(request.stop, limits)
    _validate_stop_token_ids(request.stop_token_ids, limits)
    _validate_logits_processors(request.logits_processors, limits)
    _validate_seed(request.seed, best_of)
    top_n_tokens = request.logprobs.top_n_tokens
    most = request.max_top_n_tokens or 0
    most = max(most, limits.max_top_n_tokens)
    if not 0 <= top_n_tokens <= most:
        raise ValidationError(f"`top_n_tokens` must be >= 0 and <= {most}. Given: {top_n_tokens}")
    _validate_inputs(request, limits)


def sampling_params(request: GenerateRequest, seed: int | None, limits: Limits) -> SamplingParams:
    """Translate validated parameters for the engine. `seed` is None if nothing is drawn."""
    repetition_penalty = 1.0 if request.repetition_penalty is None else request.repetition_penalty
    return SamplingParams(
        greedy=not is_sampling(request),
        temperature=1.0 if request.temperature is None else request.temperature,
        # more than there are tokens means all of them
        top_k=min(request.top_k or 0, limits.vocab_size),
        top_p=1.0 if request.top_p is None else request.top_p,
        typical_p=1.0 if request.typical_p is None else request.typical_p,
        min_p=request.min_p or 0.0,
        repetition_penalty=repetition_penalty,
        frequency_penalty=request.frequency_penalty or 0.0,
        presence_penalty=request.presence_penalty or 0.0,
        logit_bias=request.logit_bias,
        watermark=request.watermark,
        seed=0 if seed is None else seed,
    )


def validate_text(name: str, *texts: str) -> None:
    """Refuse text that has no UTF-8 form: half of a surrogate pair, as JSON can escape it."""
    try:
        for text in texts:
            text.encode()
    except UnicodeEncodeError:
        raise ValidationError(f"`{name}` is not valid Unicode text") from None


def _validate_numbers(request: GenerateRequest) -> None:
    _strictly_positive_number("temperature", request.temperature)
    _strictly_positive_number("repetition_penalty", request.repetition_penalty)
    _penalty("frequency_penalty", request.frequency_penalty)
    _penalty("presence_penalty", request.presence_penalty)
    _probability("top_p", request.top_p)
    _probability("typical_p", request.typical_p)
    if (min_p := _finite("min_p", request.min_p)) is not None and not 0.0 <= min_p <= 1.0:
        raise ValidationError("`min_p` must be >= 0.0 and <= 1.0")
    _strictly_positive_count("top_k", request.top_k)
    _strictly_positive_count("max_new_tokens", request.max_new_tokens)
    _validate_min_new_tokens(request)


def _validate_min_new_tokens(request: GenerateRequest) -> None:
    least, most = request.min_new_tokens, request.max_new_tokens
    if most is not None and least > most:
        raise ValidationError(
            f"`min_new_tokens` must be <= `max_new_tokens`. Given: {least} and {most}"
        )


def _validate_logit_bias(bias: dict[int, float], vocab_size: int) -> None:
    if len(bias) > MAX_BIASES:
        raise ValidationError(
            f"`logit_bias` supports up to {MAX_BIASES} tokens. Given: {len(bias)}"
        )
    _validate_ids("logit_bias", bias, vocab_size)
    for value in bias.values():
        if not -100.0 <= value <= 100.0:
            raise ValidationError(
                f"`logit_bias` must have values >= -100 and <= 100. Given: {value}"
            )


def _validate_ids(name: str, ids: Iterable[int], vocab_size: int) -> None:
    for id in ids:
        if not 0 <= id < vocab_size:
            raise ValidationError(
                f"`{name}` must have token ids >= 0 and < {vocab_size}. Given: {id}"
            )


def _penalty(name: str, value: float | None) -> None:
    if (number := _finite(name, value)) is not None and not -2.0 <= number <= 2.0:
        raise ValidationError(f"`{name}` must be >= -2.0 and <= 2.0")


def _finite(name: str, value: float | None) -> float | None:
    if value is not None and not (math.isfinite(value) and abs(value) <= _FLOAT32_MAX):
        raise ValidationError(f"`{name}` must be a finite number")
    return value


def _strictly_positive_number(name: str, value: float | None) -> None:
    # the engine computes in float32, where anything smaller counts as zero
    if (number := _finite(name, value)) is not None and number < _FLOAT32_TINY:
        raise ValidationError(f"`{name}` must be strictly positive")


def _probability(name: str, value: float | None) -> None:
    if (number := _finite(name, value)) is not None and not 0.0 < number <= 1.0:
        raise ValidationError(f"`{name}` must be > 0.0 and <= 1.0")


def _strictly_positive_count(name: str, value: int | None) -> None:
    if value is not None and value <= 0:
        raise ValidationError(f"`{name}` must be strictly positive")


def _validate_stop(stop: tuple[str, ...], limits: Limits) -> None:
    if len(stop) > limits.max_stop_sequences:
        raise ValidationError(
            f"`stop` supports up to {limits.max_stop_sequences} stop sequences. Given: {len(stop)}"
        )
    if any(len(string) > MAX_STOP_CHARACTERS for string in stop):
        raise ValidationError(f"`stop` must have strings of <= {MAX_STOP_CHARACTERS} characters")
    if "" in stop:
        raise ValidationError("`stop` cannot contain an empty string")
    validate_text("stop", *stop)


def _validate_stop_token_ids(ids: Sequence[int], limits: Limits) -> None:
    if len(ids) > MAX_STOP_TOKEN_IDS:
        raise ValidationError(
            f"`stop_token_ids` supports up to {MAX_STOP_TOKEN_IDS} tokens. Given: {len(ids)}"
        )
    _validate_ids("stop_token_ids", ids, limits.vocab_size)


def _validate_logits_processors(specs: Sequence[LogitsProcessorSpec], limits: Limits) -> None:
    if len(specs) > MAX_LOGITS_PROCESSORS:
        raise ValidationError(
            f"`logits_processors` supports up to {MAX_LOGITS_PROCESSORS} logits processors. "
            f"Given: {len(specs)}"
        )
    for spec in specs:
        validate_text("logits_processors", spec.name)
        if spec.name not in limits.logits_processors:
            installed = ", ".join(limits.logits_processors) or "none"
            raise ValidationError(
                "`logits_processors` must have names of installed logits processors: "
                f"{installed}. Given: {spec.name}"
            )
        _validate_args(spec)


def _validate_args(spec: LogitsProcessorSpec) -> None:
    """What they mean is for their processor to say; here, that they can be sent to it."""
    problem = None
    if _is_deeper(spec.args, MAX_ARGS_DEPTH):
        problem = f"nested deeper than {MAX_ARGS_DEPTH}"
    else:
        try:
            msgspec.msgpack.encode(spec.args)
        except UnicodeEncodeError:
            problem = "not valid Unicode text"
        except OverflowError:
            problem = "integers must have at most 64 bits"
    if problem is not None:
        raise ValidationError(f"`logits_processors`: {spec.name}: {problem}")


def _is_deeper(value: object, levels: int) -> bool:
    """Whether lists and dicts are nested in more levels."""
    if isinstance(value, dict):
        value = list(value.values())
    if not isinstance(value, list):
        return False
    return levels == 0 or any(_is_deeper(child, levels - 1) for child in value)


def _validate_seed(seed: int | None, best_of: int) -> None:
    if seed is None:
        return
    if best_of > 1:
        raise ValidationError("`seed` must not be set when `best_of` > 1")
    if not 0 <= seed <= MAX_SEED:
        raise ValidationError(f"`seed` must be >= 0 and <= {MAX_SEED}. Given: {seed}")


def _validate_inputs(request: GenerateRequest, limits: Limits) -> None:
    if request.prompt_ids is not None:
        if not request.prompt_ids:
            raise ValidationError("`inputs` cannot be empty")
        _validate_ids("inputs", request.prompt_ids, limits.vocab_size)
    elif request.chat is None and not request.inputs:
        raise ValidationError("`inputs` cannot be empty")
    validate_text("inputs", request.inputs)
    truncate = request.truncate
    if truncate is not None and not 0 < truncate <= limits.max_input_tokens:
        raise ValidationError(
            f"`truncate` must be strictly positive and less than {limits.max_input_tokens}. "
            f"Given: {truncate}"
        )
