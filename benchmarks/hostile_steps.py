"""What a hostile grammar adds to the steps of its neighbours, kind by kind, in one process."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from benchmarks.hostile_kinds import Kind
from benchmarks.measurement import percentile_ms
from benchmarks.watched_backend import Watch, WatchedBackend
from tokenloom_engine.config import EngineConfig
from tokenloom_engine.constraints.base import InvalidConstraintError
from tokenloom_engine.constraints.spec import ConstraintKind, ConstraintSpec
from tokenloom_engine.engine import Engine
from tokenloom_engine.messages import SamplingParams, SequenceOutput, StoppingParams, Submit
from tokenloom_engine.process import SWITCH_SECONDS

SPEC_KINDS: dict[str, ConstraintKind] = {
    "json": "json_schema",
    "regex": "regex",
    "grammar": "grammar",
}
KV_TOKENS = 32768
LONG = 1500
"""Tokens that a neighbour may generate: more than it comes to."""

FREELY = SamplingParams(greedy=False, temperature=2.0, seed=1)
"""So that neighbours' texts do not repeat themselves: what drafts they have changes a step, too."""


@dataclass
class StepFigures:
    """Seconds of steps, by their parts."""

    whole: list[float] = field(default_factory=list)
    rest: list[float] = field(default_factory=list)
    """All but the forward."""
    inside: list[float] = field(default_factory=list)
    """CPU time in the step's own thread that constraints took."""
    beside: list[float] = field(default_factory=list)
    """CPU time of the longest call of a constraint that kept Python's lock in another thread."""
    longest: Counter[str] = field(default_factory=Counter)
    """The calls that took longest in steps that spent a millisecond on constraints."""

    def line(self) -> dict[str, Any]:
        """Percentiles, by their names in the output."""
        return {
            "steps": len(self.whole),
            **_percentiles("step", self.whole),
            **_percentiles("rest", self.rest),
        }

    def constraint_line(self) -> dict[str, Any]:
        """What the constraints had of it."""
        return {
            **_percentiles("inside", self.inside),
            "beside_max_ms": percentile_ms(self.beside, 1.0),
            "longest": dict(self.longest),
        }


class HostileSteps:
    """An engine that decodes free sequences beside hostile ones."""

    def __init__(self, config: EngineConfig, *, rows: int, steps: int) -> None:
        """`rows` free sequences; each of their sides is measured for so many steps."""
        sys.setswitchinterval(SWITCH_SECONDS)
        self._engine = Engine(config)
        self._watch = Watch()
        backends = self._engine._constraints._backends
        for name, backend in backends.items():
            backends[name] = WatchedBackend(backend, self._watch)
        self._rows = rows
        self._steps = steps
        self._ids = count()
        self._variants = count()

    def run(self, kind: Kind, rounds: int) -> dict[str, Any]:
        """A line of figures: with the kind's sequences and without them, in turn."""
        line: dict[str, Any] = {"measured": "step", "kind": kind.name, "hostile_rows": kind.rows}
        if (reason := self._refusal(kind)) is not None:
            return {**line, "refused": reason}
        without, beside = StepFigures(), StepFigures()
        ended: Counter[str] = Counter()
        for _ in range(rounds):
            self._measure(without, None, ended)
            self._measure(beside, kind, ended)
        return {
            **line,
            "without": without.line(),
            "with": {**beside.line(), **beside.constraint_line()},
            "ended": ended.most_common(),
        }

    def close(self) -> None:
        """Let the engine's threads end."""
        self._engine.close()

    def _refusal(self, kind: Kind) -> str | None:
        """Why the front would not let it through, if it would not."""
        try:
            self._engine._constraints.validate(_spec(kind, next(self._variants)))
        except InvalidConstraintError as error:
            return str(error)
        return None

    def _measure(self, figures: StepFigures, kind: Kind | None, ended: Counter[str]) -> None:
        """Whatever ends is followed by another of its kind: its client does not give up."""
        engine = self._engine
        free = [self._submit(LONG) for _ in range(self._rows)]
        while engine.step().stats.decode_sequences < self._rows:
            pass
        hostile = set(self._submit_hostile(kind)) if kind is not None else set()
        self._watch.take()
        for _ in range(self._steps):
            start = time.perf_counter()
            outputs = engine.step()
            seconds = time.perf_counter() - start
            inside, beside, longest = self._watch.take()
            figures.whole.append(seconds)
            figures.rest.append(seconds - outputs.stats.forward_seconds)
            figures.inside.append(inside)
            figures.beside.append(beside)
            if inside > 0.001:
                figures.longest[longest] += 1
            for output in outputs.outputs:
                if output.id in hostile and (how := _end(output)) is not None:
                    ended[how] += 1
                    hostile.discard(output.id)
            if kind is not None and not hostile:
                hostile.update(self._submit_hostile(kind))
        for id in (*free, *hostile):
            engine.abort(id)
        while engine.has_work:
            engine.step()

    def _submit_hostile(self, kind: Kind) -> Iterator[int]:
        spec = _spec(kind, next(self._variants))
        for _ in range(kind.rows):
            yield self._submit(kind.max_tokens, spec, kind.stop)

    def _submit(
        self, max_tokens: int, spec: ConstraintSpec | None = None, stop: tuple[str, ...] = ()
    ) -> int:
        id = next(self._ids)
        self._engine.submit(
            Submit(
                id=id,
                prompt_ids=[100 + id % 2000, *range(200, 700, 100)],
                sampling=SamplingParams() if spec is not None else FREELY,
                stopping=StoppingParams(
                    max_new_tokens=max_tokens, stop=stop, ignore_eos=spec is None
                ),
                constraint=spec,
            )
        )
        return id


def _spec(kind: Kind, i: int) -> ConstraintSpec:
    grammar = kind.grammar(i)
    return ConstraintSpec(SPEC_KINDS[grammar["type"]], grammar["value"])


def _end(output: SequenceOutput) -> str | None:
    if output.finish is not None:
        return output.finish.reason
    return output.error or output.refusal


def _percentiles(name: str, seconds: list[float]) -> dict[str, float | None]:
    return {
        f"{name}_p50_ms": percentile_ms(seconds, 0.5),
        f"{name}_p99_ms": percentile_ms(seconds, 0.99),
        f"{name}_max_ms": percentile_ms(seconds, 1.0),
    }
