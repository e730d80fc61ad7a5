"""The fields that completions and chats share, and their meaning for the router."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field

from tokenloom_engine.messages import LogitsProcessorSpec, LogprobParams
from tokenloom_router.errors import ValidationError
from tokenloom_router.request import GenerateRequest
from tokenloom_router.sampling_defaults import SamplingDefaults
from tokenloom_server.api.generate_request import LogitsProcessorBody, token_biases
from tokenloom_server.api.grammar import STRICT
from tokenloom_server.api.items import MAX_ITEMS, Items
from tokenloom_server.api.openai.structured_outputs import StructureFields

T = TypeVar("T")
Float = Annotated[float, Field(allow_inf_nan=False)]
Penalty = Annotated[Float, Field(ge=-2, le=2)]
Share = Annotated[Float, Field(ge=0, le=1)]
Seed = Annotated[int, Field(ge=-(2**63), lt=2**64)]
Absent = Annotated[None, Field(description="Must be absent, or null")]
"""A field of OpenAI's that nothing here can do."""
Retention = Literal["in_memory"]
"""Of what the prefix cache has."""
Count = Annotated[int, Field(ge=0, lt=2**32)]

MAX_N = 128
MAX_TOP_LOGPROBS = 20
COLDEST = 1e-5
"""A lower temperature is greedy."""
_REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")


def _as_strings(value: object) -> object:
    """One string, or several."""
    return [value] if isinstance(value, str) else value


def _request_id(value: str) -> str:
    if not _REQUEST_ID.fullmatch(value):
        raise ValueError("must be 1 to 128 letters, digits and ._:-")
    return value


Strings = Annotated[
    Items[str], BeforeValidator(_as_strings, json_schema_input_type=str | list[str])
]


class StreamOptions(BaseModel):
    """What a stream has besides the text."""

    model_config = STRICT

    include_usage: bool | None = Field(
        default=None, description="A last chunk without choices has the `usage`"
    )
    continuous_usage_stats: bool | None = Field(
        default=None, description="Every chunk has the `usage` so far"
    )
    include_obfuscation: bool | None = Field(default=None, description="Must not be true")


class SamplingFields(StructureFields):
    """How to generate. null is the same as absent; a field that is not named here is refused."""

    model_config = STRICT

    model: str | None = Field(
        default=None, description="The served model's name, or `tgi`; `/v1/models` tells it"
    )
    n: int | None = Field(
        default=None, ge=1, le=MAX_N, description="How many choices to generate for each prompt"
    )
    stream: bool | None = Field(default=None, description="Send the text as it comes")
    stream_options: StreamOptions | None = None
    stop: Strings | None = Field(
        default=None,
        description="The text ends before the first of these strings to appear; one or a list",
    )
    seed: Seed | None = Field(
        default=None, description="The same seed draws the same tokens; choice i has seed + i"
    )
    temperature: Float | None = Field(
        default=None, ge=0, description="Divides the logits; 0 takes the most probable token"
    )
    top_p: Share | None = Field(
        default=None,
        description="Draw among the most probable tokens that together have so much",
    )
    presence_penalty: Penalty | None = Field(
        default=None, description="Lowers the logits of tokens that the output has"
    )
    frequency_penalty: Penalty | None = Field(
        default=None, description="Lowers a token's logit for each time that the output has it"
    )
    logit_bias: dict[str, Float] | None = Field(
        default=None, description="Added to the logits of tokens, by their ids; -100 to 100"
    )
    user: str | None = Field(default=None, description="Has no effect")
    metadata: dict[str, Any] | None = Field(default=None, description="Has no effect")
    store: bool | None = Field(default=None, description="Must not be true: nothing is stored")

    top_k: int | None = Field(
        default=None,
        ge=-1,
        lt=2**31,
        description="Draw among the k most probable tokens; 0 and -1 are off (vLLM)",
    )
    min_p: Share | None = Field(
        default=None,
        description="Draw no token less probable than this share of the most probable (vLLM)",
    )
    repetition_penalty: Float | None = Field(
        default=None,
        gt=0,
        description="> 1 makes tokens that the prompt or the output has less probable (vLLM)",
    )
    min_tokens: Count | None = Field(
        default=None, description="Nothing but a grammar ends the text before so many (vLLM)"
    )
    ignore_eos: bool | None = Field(
        default=None, description="Go on after the end-of-sequence token (vLLM)"
    )
    stop_token_ids: Items[int] | None = Field(
        default=None, description="These tokens end the text, too (vLLM)"
    )
    include_stop_str_in_output: bool | None = Field(
        default=None, description="Keep what ended the text (vLLM)"
    )
    skip_special_tokens: bool | None = Field(
        default=None, description="false keeps special tokens in the text (vLLM)"
    )
    truncate_prompt_tokens: int | None = Field(
        default=None, ge=1, description="Use the last so many prompt tokens only (vLLM)"
    )
    return_token_ids: bool | None = Field(
        default=None, description="Return the ids of prompt and output (vLLM)"
    )
    request_id: Annotated[str, AfterValidator(_request_id)] | None = Field(
        default=None, description="Becomes a part of the answer's `id` (vLLM)"
    )
    forced_tokens: bool | None = Field(
        default=None,
        description="false computes tokens that the grammar forces one by one; they are the same",
    )
    token_healing: bool | None = Field(
        default=None, description="Tokenize the prompt's end anew together with what follows"
    )
    logprobs_mode: Literal["raw", "processed"] | None = Field(
        default=None,
        description="Whether log-probabilities are the model's own, or of the distribution that "
        "tokens were drawn from",
    )
    logits_processors: Items[LogitsProcessorBody] | None = Field(
        default=None,
        max_length=MAX_ITEMS,
        description="Custom logits processors, in order; `/info` names them",
    )

    @property
    def wants_usage(self) -> bool:
        """Whether a stream ends with the usage."""
        options = self.stream_options
        return options is not None and bool(options.include_usage)

    @property
    def wants_usage_always(self) -> bool:
        """Whether each chunk of a stream has the usage."""
        options = self.stream_options
        return options is not None and bool(options.continuous_usage_stats)

    def sampled_request(
        self,
        defaults: SamplingDefaults,
        *,
        max_tokens: int | None,
        logprobs: LogprobParams,
        n: int,
    ) -> GenerateRequest:
        """All but the prompt, in the router's words. Raises ValidationError."""
        self._refuse()
        named = self.constraint()
        temperature = first(self.temperature, defaults.temperature)
        top_p = first(self.top_p, defaults.top_p)
        top_k = 1 if top_p == 0 else first(self.top_k, defaults.top_k)
        is_greedy = temperature is not None and temperature < COLDEST
        return GenerateRequest(
            n=n,
            do_sample=not is_greedy,
            temperature=None if is_greedy else temperature,
            top_p=None if is_greedy or top_p == 0 else top_p,
            top_k=None if is_greedy or top_k is None or top_k < 1 else top_k,
            min_p=None if is_greedy else first(self.min_p, defaults.min_p),
            repetition_penalty=first(self.repetition_penalty, defaults.repetition_penalty),
            frequency_penalty=self.frequency_penalty,
            presence_penalty=self.presence_penalty,
            max_new_tokens=max_tokens,
            min_new_tokens=self.min_tokens or 0,
            stop=tuple(self.stop or ()),
            stop_token_ids=tuple(self.stop_token_ids or ()),
            ignore_eos=bool(self.ignore_eos),
            logit_bias=token_biases(self.logit_bias or {}),
            seed=None if self.seed is None else self.seed % 2**64,
            truncate=self.truncate_prompt_tokens,
            constraint=None if named is None else named[1],
            forced_tokens=self.forced_tokens is not False,
            token_healing=bool(self.token_healing),
            logits_processors=tuple(
                LogitsProcessorSpec(processor.name, processor.args)
                for processor in self.logits_processors or ()
            ),
            logprobs=logprobs,
            max_top_n_tokens=MAX_TOP_LOGPROBS,
        )

    def _refuse(self) -> None:
        if self.store:
            raise ValidationError("`store` must not be true: the server keeps nothing")
        if self.stream_options is not None and not self.stream:
            raise ValidationError("`stream_options` needs `stream` to be true")
        if self.stream_options is not None and self.stream_options.include_obfuscation:
            raise ValidationError("`stream_options`: `include_obfuscation` is not supported")


def first(given: T | None, default: T | None) -> T | None:
    """What the request says outranks what the model does."""
    return default if given is None else given
