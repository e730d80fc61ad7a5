"""The body of the generate routes, as TGI has it, and its meaning for the router."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from tokenloom_engine.messages import LogitsProcessorSpec, LogprobParams
from tokenloom_router.errors import ValidationError
from tokenloom_router.parameters import validate_text
from tokenloom_router.request import GenerateRequest
from tokenloom_server.api.grammar import Grammar
from tokenloom_server.api.items import MAX_ITEMS, Items
from tokenloom_server.unknown_fields import OpenBody

Float = Annotated[float, Field(allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0, lt=2**32)]
SignedCount = Annotated[int, Field(ge=-(2**31), lt=2**31)]
Seed = Annotated[int, Field(ge=0, lt=2**64)]

MAX_SHOWN_CHARACTERS = 200
"""Of what the client sent, in an error."""
_INTEGER = re.compile(r"0|-?[1-9][0-9]{0,30}")


class LogitsProcessorBody(BaseModel):
    """A custom logits processor that the server has installed."""

    model_config = ConfigDict(strict=True, extra="forbid")

    name: str = Field(description="Of its entry point")
    args: dict[str, Any] = Field(default={}, description="What it takes")


class GenerateParameters(OpenBody):
    """How to generate."""

    best_of: Count | None = Field(
        default=None,
        description="Generate so many, at most --max-best-of, and return the most probable; needs "
        "sampling",
        json_schema_extra={"minimum": 1},
    )
    temperature: Float | None = Field(
        default=None,
        description="Divides the logits; > 0",
        json_schema_extra={"exclusiveMinimum": 0},
    )
    repetition_penalty: Float | None = Field(
        default=None,
        description="> 1 makes tokens that the prompt or the output has less probable; > 0",
        json_schema_extra={"exclusiveMinimum": 0},
    )
    frequency_penalty: Float | None = Field(
        default=None,
        description="Lowers a token's logit for each time that the output has it; -2 to 2",
        json_schema_extra={"minimum": -2, "maximum": 2},
    )
    top_k: SignedCount | None = Field(
        default=None,
        description="Draw among the k most probable tokens",
        json_schema_extra={"exclusiveMinimum": 0},
    )
    top_p: Float | None = Field(
        default=None,
        description="Draw among the most probable tokens that together have so much; 0 to 1",
        json_schema_extra={"exclusiveMinimum": 0, "maximum": 1},
    )
    typical_p: Float | None = Field(
        default=None,
        description="Draw among the most typical tokens that together have so much; 0 to 1",
        json_schema_extra={"exclusiveMinimum": 0, "maximum": 1},
    )
    do_sample: bool = Field(
        default=False,
        description="Draw the tokens. Drawn too if temperature, top_k, top_p or typical_p is given",
    )
    max_new_tokens: Count | None = Field(
        default=None,
        description="Most tokens to generate; without it as many as the server allows",
        json_schema_extra={"exclusiveMinimum": 0},
    )
    return_full_text: bool | None = Field(
        default=None, description="Put the prompt in front of the text. On `/` the default is true"
    )
    stop: Items[str] = Field(
        default=[],
        description="The text ends with the first of these to appear, which is kept; at most "
        "--max-stop-sequences",
    )
    ignore_eos: bool = Field(
        default=False, description="Go on after the model's end-of-sequence token (not in TGI)"
    )
    min_new_tokens: Count = Field(
        default=0,
        description="End-of-sequence tokens and stop strings do not end the text before so many "
        "tokens; a complete grammar does (not in TGI)",
    )
    logit_bias: dict[str, Float] = Field(
        default={},
        description="Added to the logits of tokens, by their ids; -100 to 100 (not in TGI)",
    )
    truncate: Count | None = Field(
        default=None,
        description="Use the last so many prompt tokens only",
        json_schema_extra={"exclusiveMinimum": 0},
    )
    watermark: bool = Field(
        default=False,
        description="Prefer a part of the vocabulary, by which a detector tells the text from "
        "others; the server's flags say how strongly",
    )
    details: bool = Field(default=False, description="Return the tokens and how they came about")
    decoder_input_details: bool = Field(default=False, description="Return the prompt's tokens too")
    seed: Seed | None = Field(default=None, description="The same seed draws the same tokens")
    top_n_tokens: Count | None = Field(
        default=None,
        description="Return the n most probable tokens at each position; at most "
        "--max-top-n-tokens",
    )
    grammar: Grammar | None = Field(default=None, description="What the output must look like")
    forced_tokens: bool = Field(
        default=True,
        description="False computes tokens that the grammar forces one by one; they are the same "
        "(not in TGI)",
    )
    token_healing: bool = Field(
        default=False,
        description="Tokenize the prompt's end anew together with what follows (not in TGI)",
    )
    logprobs_mode: Literal["raw", "processed"] = Field(
        default="raw",
        description="Whether log-probabilities are the model's own, or of the distribution that "
        "tokens were drawn from, after penalties, grammar and temperature (not in TGI)",
    )
    logits_processors: Items[LogitsProcessorBody] = Field(
        default=[],
        max_length=MAX_ITEMS,
        description="Custom logits processors, in order; `/info` names those that are installed "
        "(not in TGI)",
    )
    adapter_id: str | None = Field(
        default=None, description="Must be absent: no adapters are loaded"
    )

    @property
    def wants_details(self) -> bool:
        """Whether the response has `details`."""
        return self.details or self.decoder_input_details


class GenerateBody(OpenBody):
    """A prompt, and how to go on from it."""

    inputs: str = Field(description="The prompt")
    parameters: GenerateParameters = GenerateParameters()

    def to_request(self, *, stream: bool) -> GenerateRequest:
        """In the router's words. Raises ValidationError for what no route can do."""
        given = self.parameters
        _refuse_adapter(given.adapter_id)
        return GenerateRequest(
            inputs=self.inputs,
            best_of=given.best_of,
            temperature=given.temperature,
            repetition_penalty=given.repetition_penalty,
            frequency_penalty=given.frequency_penalty,
            top_k=given.top_k,
            top_p=given.top_p,
            typical_p=given.typical_p,
            do_sample=given.do_sample,
            max_new_tokens=given.max_new_tokens,
            stop=tuple(given.stop),
            ignore_eos=given.ignore_eos,
            min_new_tokens=given.min_new_tokens,
            logit_bias=token_biases(given.logit_bias),
            watermark=given.watermark,
            seed=given.seed,
            truncate=given.truncate,
            constraint=given.grammar.to_spec() if given.grammar else None,
            forced_tokens=given.forced_tokens,
            token_healing=given.token_healing,
            logits_processors=tuple(
                LogitsProcessorSpec(processor.name, processor.args)
                for processor in given.logits_processors
            ),
            logprobs=LogprobParams(
                tokens=stream or given.wants_details,
                top_n_tokens=given.top_n_tokens or 0,
                prompt=given.decoder_input_details,
                processed=given.logprobs_mode == "processed",
            ),
            stream=stream,
        )


class CompatGenerateBody(GenerateBody):
    """The same, for `/`, where a field says whether to stream."""

    stream: bool = Field(default=False, description="Send each token as it comes")


def token_biases(given: dict[str, float]) -> dict[int, float]:
    """By id; JSON has no keys but strings. Raise ValidationError for what is not the one way to
    spell an id: in several, one token could have two biases.
    """
    biases = dict[int, float]()
    for key, bias in given.items():
        if not _INTEGER.fullmatch(key):
            shown = ascii(key[:MAX_SHOWN_CHARACTERS])
            raise ValidationError(f"`logit_bias` must have token ids as keys. Given: {shown}")
        biases[int(key)] = bias
    return biases


def _refuse_adapter(adapter_id: str | None) -> None:
    if adapter_id is not None:
        validate_text("adapter_id", adapter_id)
        shown = adapter_id[:MAX_SHOWN_CHARACTERS]
        raise ValidationError(f"`adapter_id` must name a loaded adapter: none is. Given: {shown}")
