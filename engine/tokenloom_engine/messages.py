"""The messages that cross the border between the front process and the engine process.

They are msgspec structs, so that one definition is the type on both sides and the msgpack on
the wire. This module imports neither torch nor transformers: the front process reads it too.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from tokenloom_engine.constraints.base import Captures
from tokenloom_engine.constraints.spec import ConstraintSpec

FinishReason = Literal["length", "eos_token", "stop_sequence"]


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How the next token is chosen from the logits of one sequence.

    Applied in this order: repetition penalty, frequency and presence penalty, logit bias, custom
    processors, watermark, constraint bitmask, temperature, min-p, top-k, top-p, typical-p, draw.
    Each default switches its step off.
    """

    greedy: bool = True
    """Take the most probable token; temperature, top_k, top_p and typical_p then do not matter.
    What the constraint's grammar says of the temperature of a token outranks this and that."""
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    typical_p: float = 1.0
    min_p: float = 0.0
    """Tokens less probable than this share of the most probable one are not drawn."""
    repetition_penalty: float = 1.0
    """Divides positive and multiplies negative logits of every token in prompt or output."""
    frequency_penalty: float = 0.0
    """Subtracted from a token's logit once for each time that it stands in the output."""
    presence_penalty: float = 0.0
    """Subtracted from a token's logit if it stands in the output, however often."""
    logit_bias: dict[int, float] = {}
    """Added to the logits of these tokens."""
    watermark: bool = False
    """Prefer tokens that a detector can count, by the engine's gamma and delta."""
    seed: int = 0
    """With the token's position, the only input of the random draw. 0 <= seed < 2**64."""


class StopScope(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where in a text stop strings count, if not everywhere."""

    aside: tuple[str, str] | None = None
    """Not in what the text may begin with: from the first of these tags to the second, and the
    white space behind it."""
    is_aside_open: bool = False
    """The prompt has the first tag already."""
    until: tuple[str, ...] = ()
    """Not from the end of any of these on. An empty one: nowhere behind the aside."""
    in_json: bool = False
    """Up to there, the text is JSON, and what ends inside one of its strings does not count."""


class StoppingParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """When a sequence ends."""

    max_new_tokens: int
    stop: tuple[str, ...] = ()
    """The text ends with the first of these to appear, which is kept, and nothing follows it."""
    stop_scope: StopScope = StopScope()
    stop_token_ids: tuple[int, ...] = ()
    """These end the text as EOS does, also with `ignore_eos`."""
    ignore_eos: bool = False
    min_new_tokens: int = 0
    """Before so many tokens, none of these and no stop string ends it; a constraint does."""


class LogprobParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Which log-probabilities a request wants. None are computed unless asked for."""

    tokens: bool = False
    """The chosen token's, by the model's own distribution (before penalties and bitmask)."""
    top_n_tokens: int = 0
    """The n most probable tokens at each position, by the same distribution."""
    prompt: bool = False
    """The prompt tokens' too."""
    processed: bool = False
    """Report the distribution that was drawn from instead of the model's own. A forced token's
    logprob is then 0."""


class LogitsProcessorSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """A custom logits processor that a request asks for."""

    name: str
    """Of its factory's entry point."""
    args: dict[str, Any] = {}


class Submit(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="submit"):
    """Front to engine: generate from this prompt."""

    id: int
    prompt_ids: list[int]
    sampling: SamplingParams
    stopping: StoppingParams
    logprobs: LogprobParams = LogprobParams()
    constraint: ConstraintSpec | None = None
    logits_processors: tuple[LogitsProcessorSpec, ...] = ()
    """Applied in this order, after the penalties and before the constraint's bitmask."""
    forced_tokens: bool = True
    """False: tokens that the constraint forces are computed one by one instead of in one forward.
    The tokens are the same."""
    request_id: str | None = None
    """Id of the request, for log lines. It need not be unique."""


class Abort(msgspec.Struct, frozen=True, tag="abort"):
    """Front to engine: the client left; drop the sequence. Unknown ids are ignored."""

    id: int


Inbound = Submit | Abort


class TopToken(msgspec.Struct, frozen=True, omit_defaults=True):
    """One of the most probable tokens at a position."""

    id: int
    text: str
    logprob: float
    special: bool
    masked: bool = False
    """The constraint did not allow it."""


class Token(msgspec.Struct, frozen=True, omit_defaults=True):
    """One token, as it is reported."""

    id: int
    text: str
    """Empty while a character's bytes are incomplete; the token that completes them has it.
    Without what repeats the prompt's end, after token healing."""
    logprob: float | None = None
    """None if it was not asked for, and for the first token of a prompt."""
    special: bool = False
    forced: bool = False
    """The constraint left no other choice; the model was not asked."""
    top: list[TopToken] | None = None
    temperature: float | None = None
    """That at which it was drawn, if the constraint's grammar said so; 0 is greedy."""


class Finish(msgspec.Struct, frozen=True, omit_defaults=True):
    """The end of a sequence."""

    reason: FinishReason
    generated_text: str
    """The texts of all generated tokens that are not special, joined."""
    generated_tokens: int
    forced_tokens: int
    accepted_tokens: int = 0
    """Drafts that were right: tokens that needed no forward of their own."""
    captures: Captures = {}
    """What the grammar's named parts matched."""


class SequenceOutput(msgspec.Struct, omit_defaults=True):
    """What one step brought for one sequence. The last one has `finish`, `error` or `refusal`."""

    id: int
    tokens: list[Token] = msgspec.field(default_factory=list)
    prompt: list[Token] | None = None
    """All prompt tokens, once, with the first output, if `LogprobParams.prompt`."""
    started_at: float | None = None
    """With the first output: `time.monotonic()` when the sequence first joined the batch."""
    cached_tokens: int | None = None
    """With the first output: prompt tokens whose keys and values the prefix cache had."""
    finish: Finish | None = None
    error: str | None = None
    is_constraint_error: bool = False
    """Whether `error` is what the constraint itself came to: no text matches it from here on, or it
    exceeds a limit. The request is at fault, and not the engine."""
    refusal: str | None = None
    """What is wrong with the request; nothing was generated."""


class EngineStats(msgspec.Struct, omit_defaults=True):
    """The engine's state after a step; the counters cover that step alone."""

    running: int = 0
    waiting: int = 0
    used_tokens: int = 0
    """Token places of the KV cache that sequences hold."""
    total_tokens: int = 0
    batch_tokens: int = 0
    """Tokens that the step's forward computed."""
    prefill_sequences: int = 0
    decode_sequences: int = 0
    prefix_hit_tokens: int = 0
    preemptions: int = 0
    forced_tokens: int = 0
    drafted_tokens: int = 0
    """Guesses that the step's forward verified."""
    accepted_tokens: int = 0
    """Those of them that were right, and became tokens."""
    merges: int = 0
    """Sequences that joined a batch which was already running."""
    failed: bool = False
    """The step broke off with an error, and its sequences ended."""
    step_seconds: float = 0.0
    """From the launch of the step's forward to the outputs."""
    forward_seconds: float = 0.0
    mask_seconds: float = 0.0
    compile_seconds: list[float] = msgspec.field(default_factory=list)


class StepOutputs(msgspec.Struct, omit_defaults=True, tag="step"):
    """Engine to front: one message a step, with the outputs of all its sequences."""

    outputs: list[SequenceOutput]
    stats: EngineStats


class ModelInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What the front needs to know of the loaded model."""

    model_id: str
    model_path: str
    """Local folder with weights and configuration."""
    tokenizer_file: str
    """A tokenizer.json as transformers would apply it; read it with the tokenizers library."""
    sha: str | None
    model_type: str
    dtype: str
    device: str
    attention: str
    vocab_size: int
    """Width of the logits; may exceed the number of the tokenizer's entries."""
    eos_token_ids: list[int]
    max_position_embeddings: int
    max_batch_total_tokens: int
    """Token places of the KV cache."""
    max_batch_prefill_tokens: int
    max_batch_size: int | None
    num_parameters: int = 0
    num_shards: int = 1
    block_size: int = 1
    """Tokens of a KV cache block."""
    kv_bytes_per_token: int = 0
    """What the KV cache keeps of a token; each shard's own, if there are several."""
    logits_processors: list[str] = []
    """Names of the custom logits processors that are installed."""


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """Engine to front: the model is loaded; submit."""

    model: ModelInfo


class Fatal(msgspec.Struct, frozen=True, tag="fatal"):
    """Engine to front: the engine cannot start or go on. The process ends after it."""

    message: str
    """One line for the operator."""


class Heartbeat(msgspec.Struct, frozen=True, tag="heartbeat"):
    """Engine to front: the loop goes round, though there was nothing to say for a while."""


Outbound = Ready | StepOutputs | Heartbeat | Fatal
