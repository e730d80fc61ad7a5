"""The engine in the caller's own process: prompts in, texts out, for scripts and notebooks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Seq
from itertools import islice
from types import TracebackType
from typing import Any, TypeVar, cast

import msgspec
from tokenizers import Tokenizer

from tokenloom_engine.config import EngineConfig
from tokenloom_engine.constraints.spec import ConstraintSpec
from tokenloom_engine.engine import Engine
from tokenloom_engine.messages import (
    Finish,
    LogprobParams,
    SamplingParams,
    SequenceOutput,
    StoppingParams,
    Submit,
    Token,
)

MAX_IN_FLIGHT = 512
"""Prompts that the engine knows of at once; the others wait outside, where they cost nothing."""
DEFAULT_STOPPING = StoppingParams(max_new_tokens=128)

Prompt = str | Seq[int]
"""A text, or token ids."""
Constraint = ConstraintSpec | Mapping[str, Any]
"""A spec, or its fields as a dict; `value` may then be JSON that is not yet text."""
T = TypeVar("T")


class Output(msgspec.Struct, kw_only=True):
    """What became of one prompt."""

    prompt_ids: list[int]
    text: str = ""
    tokens: list[Token] = []
    prompt: list[Token] | None = None
    """The prompt's tokens, if `LogprobParams.prompt`."""
    finish: Finish | None = None
    """Why it ended, what was forced and captured; None if it failed."""
    error: str | None = None
    """Why it failed. The other prompts do not notice."""


class LLM:
    """A model, loaded once, that generates for lists of prompts.

    It is the server's engine without the server: all prompts share batches and the prefix cache.
    It belongs to one thread. What the server guards against, it trusts: a grammar is compiled
    without being tried in a process of its own first.
    """

    def __init__(self, model: str, **settings: Any) -> None:  # noqa: ANN401 - EngineConfig's fields
        """Load `model`, a folder, Hub id or GGUF file. `settings` are fields of EngineConfig.

        Raises LoadError if the model cannot be used, TypeError for a setting that there is not.
        """
        self._engine = Engine(EngineConfig(model_id=model, **settings))
        self._tokenizer = Tokenizer.from_file(self._engine.model.tokenizer_file)
        self._next_id = 0

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let helper threads end. Nothing can be generated any more."""
        self._engine.close()

    def generate(
        self,
        prompts: Prompt | Iterable[Prompt],
        *,
        sampling: SamplingParams | Seq[SamplingParams] = SamplingParams(),  # noqa: B008 - frozen
        stopping: StoppingParams | Seq[StoppingParams] = DEFAULT_STOPPING,
        constraint: Constraint | Seq[Constraint | None] | None = None,
        logprobs: LogprobParams = LogprobParams(),  # noqa: B008 - frozen
    ) -> list[Output]:
        """Generate from all prompts at once; the outputs come in their order.

        What is not a list holds for all prompts; a list has one item a prompt. Raises ValueError
        for what is wrong before anything is generated.
        """
        prompt_ids = [self._encode(i, prompt) for i, prompt in enumerate(_prompts(prompts))]
        count = len(prompt_ids)
        samplings = _each("sampling", sampling, count)
        stoppings = _each("stopping", stopping, count)
        constraints = _each("constraint", constraint, count)
        submits = [
            Submit(
                id=self._next_id + i,
                prompt_ids=ids,
                sampling=samplings[i],
                stopping=stoppings[i],
                constraint=_spec(constraints[i]),
                logprobs=logprobs,
            )
            for i, ids in enumerate(prompt_ids)
        ]
        for i, submit in enumerate(submits):
            self._check(i, submit)
        self._next_id += count
        return self._run(submits)

    def _run(self, submits: list[Submit]) -> list[Output]:
        outputs = {submit.id: Output(prompt_ids=submit.prompt_ids) for submit in submits}
        waiting = iter(submits)
        in_flight: set[int] = set()
        try:
            while True:
                for submit in islice(waiting, MAX_IN_FLIGHT - len(in_flight)):
                    in_flight.add(submit.id)
                    self._engine.submit(submit)
                if not in_flight:
                    return list(outputs.values())
                for output in self._engine.step().outputs:
                    if _add(outputs[output.id], output):
                        in_flight.remove(output.id)
        finally:  # a KeyboardInterrupt leaves nothing behind
            for id in in_flight:
                self._engine.abort(id)

    def _encode(self, number: int, prompt: Prompt) -> list[int]:
        if isinstance(prompt, str):
            ids: list[int] = self._tokenizer.encode(prompt).ids
        else:
            ids = list(prompt)
            vocab_size = self._engine.vocabulary.size
            for id in ids:
                if not 0 <= id < vocab_size:
                    raise ValueError(f"`prompts[{number}]` has {id!r}, which is no token id")
        if not ids:
            raise ValueError(f"`prompts[{number}]` has no tokens")
        return ids

    def _check(self, number: int, submit: Submit) -> None:
        model, stopping = self._engine.model, submit.stopping
        most = min(model.max_position_embeddings, model.max_batch_total_tokens)
        num_tokens = len(submit.prompt_ids) + stopping.max_new_tokens
        if stopping.max_new_tokens < 1:
            raise ValueError("`stopping.max_new_tokens` must be at least 1")
        if num_tokens > most:
            raise ValueError(
                f"`prompts[{number}]` and `stopping.max_new_tokens` are {num_tokens} tokens "
                f"together; the model has room for {most}"
            )
        if "" in stopping.stop:
            raise ValueError("`stopping.stop` has an empty string")
        _check_sampling(submit.sampling)


def _prompts(prompts: Prompt | Iterable[Prompt]) -> list[Prompt]:
    """A list of prompts, also where only one was given."""
    if isinstance(prompts, str):
        return [prompts]
    several = list(prompts)
    if several and isinstance(several[0], int):
        return [cast("list[int]", several)]
    return cast("list[Prompt]", several)


def _each(name: str, value: T | Seq[T], count: int) -> list[T]:
    """One value a prompt."""
    if not isinstance(value, Seq):
        return [value] * count
    if len(value) != count:
        raise ValueError(f"`{name}` has {len(value)} items for {count} prompts")
    return list(value)


def _spec(constraint: Constraint | None) -> ConstraintSpec | None:
    if constraint is None or isinstance(constraint, ConstraintSpec):
        return constraint
    fields = dict(constraint)
    if "value" in fields and not isinstance(fields["value"], str):
        fields["value"] = msgspec.json.encode(fields["value"]).decode()
    if unknown := set(fields).difference(ConstraintSpec.__struct_fields__):
        raise ValueError(f"`constraint` has no field `{min(unknown)}`")
    try:
        return msgspec.convert(fields, ConstraintSpec)
    except msgspec.ValidationError as error:
        raise ValueError(f"`constraint`: {error}") from error


def _check_sampling(sampling: SamplingParams) -> None:
    """The server's router checks the same of its clients' requests."""
    rules = {
        "temperature": sampling.temperature > 0,
        "top_k": sampling.top_k >= 0,
        "top_p": 0 < sampling.top_p <= 1,
        "typical_p": 0 < sampling.typical_p <= 1,
        "repetition_penalty": sampling.repetition_penalty > 0,
        "seed": 0 <= sampling.seed < 2**64,
    }
    for name, holds in rules.items():
        if not holds:
            raise ValueError(f"`sampling.{name}` cannot be {getattr(sampling, name)}")


def _add(output: Output, new: SequenceOutput) -> bool:
    """Take what a step brought; returns whether it was the last."""
    output.tokens += new.tokens
    output.prompt = new.prompt or output.prompt
    output.finish = new.finish
    output.error = new.error or new.refusal
    if new.finish is not None:
        output.text = new.finish.generated_text
    return bool(new.finish or output.error)
