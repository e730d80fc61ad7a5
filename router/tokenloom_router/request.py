"""A request, before and after validation, in no dialect's words."""

from __future__ import annotations

from dataclasses import dataclass, field

from tokenloom_engine.constraints.spec import ConstraintSpec
from tokenloom_engine.messages import (
    Finish,
    LogitsProcessorSpec,
    LogprobParams,
    SamplingParams,
    StoppingParams,
    StopScope,
    Token,
)
from tokenloom_router.chat_template import ChatPrompt


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateRequest:
    """What a client asked. `None` means that the client did not say."""

    inputs: str = ""
    """The prompt, unless it is given as one of the next two."""
    prompt_ids: tuple[int, ...] | None = None
    chat: ChatPrompt | None = None
    add_special_tokens: bool = True
    """Whether `inputs` get what the model expects around a prompt, as BOS."""
    n: int = 1
    """How many sequences to generate and return, each with a seed of its own."""
    best_of: int | None = None
    temperature: float | None = None
    repetition_penalty: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    min_p: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    typical_p: float | None = None
    do_sample: bool = False
    max_new_tokens: int | None = None
    stop: tuple[str, ...] = ()
    stop_scope: StopScope = StopScope()
    """Where `stop` counts, if not everywhere."""
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    min_new_tokens: int = 0
    logit_bias: dict[int, float] = field(default_factory=dict)
    watermark: bool = False
    seed: int | None = None
    truncate: int | None = None
    constraint: ConstraintSpec | None = None
    forced_tokens: bool = True
    """Whether tokens that the constraint forces may be computed in one forward."""
    token_healing: bool = False
    """Whether the prompt's end may be tokenized anew together with what follows."""
    logits_processors: tuple[LogitsProcessorSpec, ...] = ()
    logprobs: LogprobParams = field(default_factory=LogprobParams)
    max_top_n_tokens: int | None = None
    """What the dialect allows `top_n_tokens` to be, where that is more than the server's limit."""
    client: str = ""
    """Who asks. Clients have equal shares of what is waited for before a request runs."""
    stream: bool = False
    """Whether the outputs are wanted as they come (then best_of must be 1)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidRequest:
    """A request that the engine can run. Only `Validation` makes one."""

    prompt_ids: list[int]
    inputs: str
    sampling: SamplingParams
    stopping: StoppingParams
    logprobs: LogprobParams
    constraint: ConstraintSpec | None
    best_of: int
    n: int = 1
    seed: int | None
    """The seed to report: None if nothing is drawn."""
    forced_tokens: bool = True
    """Whether tokens that the constraint forces may share one forward."""
    logits_processors: tuple[LogitsProcessorSpec, ...] = ()
    healed_tokens: int = 0
    """How many tokens were taken off the prompt's end, to be generated anew."""
    warnings: list[str] = field(default_factory=list)
    """What the client should know of its request, though it is valid."""

    @property
    def input_length(self) -> int:
        """Number of prompt tokens."""
        return len(self.prompt_ids)


@dataclass(slots=True, kw_only=True)
class Timings:
    """When a request passed each station, by `time.monotonic()`, and how far it has come."""

    received_at: float
    validated_at: float = 0.0
    started_at: float = 0.0
    """When the engine first ran it."""
    first_token_at: float = 0.0
    finished_at: float = 0.0
    num_tokens: int = 0
    """Tokens that its sequences, all together, have generated so far."""

    @property
    def total_seconds(self) -> float:
        """From receipt to the last token."""
        return self.finished_at - self.received_at

    @property
    def validation_seconds(self) -> float:
        """From receipt until it was queued."""
        return self.validated_at - self.received_at

    @property
    def queue_seconds(self) -> float:
        """From being queued until it first joined the batch."""
        return max(0.0, self.started_at - self.validated_at)

    @property
    def inference_seconds(self) -> float:
        """From joining the batch to the last token."""
        return max(0.0, self.finished_at - self.started_at)


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """One finished sequence, whole."""

    tokens: list[Token]
    prompt: list[Token]
    finish: Finish
    seed: int | None
    cached_tokens: int = 0
    """Prompt tokens that the prefix cache had."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateResponse:
    """A finished request that was not streamed: the best sequence first, then its siblings."""

    generations: list[Generation]
    request: ValidRequest
    timings: Timings
