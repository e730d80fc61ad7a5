"""Running an engine in the test process."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from tokenloom_engine.constraints.spec import ConstraintSpec
from tokenloom_engine.engine import Engine
from tokenloom_engine.messages import (
    EngineStats,
    Finish,
    LogitsProcessorSpec,
    LogprobParams,
    SamplingParams,
    StoppingParams,
    Submit,
    Token,
)

SAMPLING = set(SamplingParams.__struct_fields__)
STOPPING = set(StoppingParams.__struct_fields__)
LOGPROBS = LogprobParams(tokens=True)


@dataclass
class Result:
    """All that an engine said of one sequence."""

    tokens: list[Token] = field(default_factory=list)
    prompt: list[Token] | None = None
    cached_tokens: int | None = None
    finish: Finish | None = None
    error: str | None = None
    is_constraint_error: bool = False
    refusal: str | None = None

    @property
    def is_over(self) -> bool:
        return self.finish is not None or self.error is not None or self.refusal is not None

    @property
    def ids(self) -> list[int]:
        return [token.id for token in self.tokens]

    @property
    def text(self) -> str:
        assert self.finish is not None, self.error or self.refusal
        return self.finish.generated_text


def submission(
    id: int,
    prompt_ids: list[int],
    max_new_tokens: int = 16,
    *,
    logprobs: LogprobParams = LOGPROBS,
    constraint: ConstraintSpec | None = None,
    forced_tokens: bool = True,
    logits_processors: tuple[LogitsProcessorSpec, ...] = (),
    request_id: str | None = None,
    **settings: Any,  # noqa: ANN401 - any of the sampling and stopping parameters
) -> Submit:
    """A Submit, from flat settings."""
    assert set(settings) <= SAMPLING | STOPPING
    return Submit(
        id=id,
        prompt_ids=prompt_ids,
        sampling=SamplingParams(**{k: v for k, v in settings.items() if k in SAMPLING}),
        stopping=StoppingParams(
            max_new_tokens=max_new_tokens, **{k: v for k, v in settings.items() if k in STOPPING}
        ),
        logprobs=logprobs,
        constraint=constraint,
        forced_tokens=forced_tokens,
        logits_processors=logits_processors,
        request_id=request_id,
    )


def run(
    engine: Engine,
    submits: Iterable[Submit],
    *,
    steps_between: int = 0,
    after_step: Callable[[EngineStats], None] = lambda stats: None,
) -> dict[int, Result]:
    """Submit all, `steps_between` apart, and step until nothing is left."""
    results: dict[int, Result] = {}

    def step() -> None:
        outputs = engine.step()
        after_step(outputs.stats)
        for output in outputs.outputs:
            result = results.setdefault(output.id, Result())
            assert not result.is_over, "nothing follows the end"
            result.tokens += output.tokens
            result.prompt = output.prompt or result.prompt
            if output.cached_tokens is not None:
                result.cached_tokens = output.cached_tokens
            result.finish, result.error = output.finish, output.error
            result.is_constraint_error = output.is_constraint_error
            result.refusal = output.refusal

    for submit in submits:
        engine.submit(submit)
        for _ in range(steps_between):
            step()
    while engine.has_work or engine.is_compiling:
        step()
    return results
