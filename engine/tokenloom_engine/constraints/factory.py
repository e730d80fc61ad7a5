"""From specs to constraints: validation, compilation off the step, pools of warm instances."""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence as Seq
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

from tokenloom_engine.constraints.backends import load_backend
from tokenloom_engine.constraints.base import (
    Bitmask,
    Constraint,
    ConstraintBackend,
    InvalidConstraintError,
    TokenizerFacts,
)
from tokenloom_engine.constraints.config import DEFAULT_BACKEND, ConstraintConfig
from tokenloom_engine.constraints.lark import sets_temperature
from tokenloom_engine.constraints.masks import (
    SLOW_SECONDS,
    CompiledConstraint,
    Mask,
    MaskFiller,
    lower_priority,
)
from tokenloom_engine.constraints.spec import ConstraintKind, ConstraintSpec

MAX_CACHED_SPECS = 512
MAX_POOLED = 64
"""Idle constraints kept per spec."""


class Lease(NamedTuple):
    """A constraint that is one sequence's alone until it is returned."""

    compiled: CompiledConstraint
    constraint: Constraint
    first_mask: Mask


class ConstraintFactory:
    """One per tokenizer. Stateless to its callers and safe in any thread.

    A sequence takes its own constraint with `lease` (or `get_constraint`) and gives it back with
    `return_constraint`; between the two nobody else has it.
    """

    def __init__(self, tokenizer: TokenizerFacts, config: ConstraintConfig) -> None:
        """Load the back ends. Raises ImportError if one's library is not installed."""
        self._config = config
        self._backends: dict[str, ConstraintBackend] = {
            name: load_backend(name, tokenizer, config)
            for name in {DEFAULT_BACKEND, *config.backends.values()}
        }
        self._compilers = ThreadPoolExecutor(
            tokenizer.num_threads, thread_name_prefix="compile", initializer=lower_priority
        )
        self._masks = MaskFiller(-(-tokenizer.vocab_size // 32), tokenizer.num_threads)
        self._compiled: OrderedDict[ConstraintSpec, Future[CompiledConstraint]] = OrderedDict()
        self._compile_seconds: list[float] = []
        self._lock = threading.Lock()

    @classmethod
    def for_tokenizer(
        cls,
        tokenizer_json: str,
        vocab_size: int,
        eos_token_ids: Seq[int],
        config: ConstraintConfig | None = None,
        num_threads: int | None = None,
    ) -> ConstraintFactory:
        """Make a factory over a tokenizer.json's text.

        `vocab_size` is the width of the logits. `eos_token_ids` are all tokens that end a text.
        Raises ImportError if a back end's library is not installed.
        """
        facts = TokenizerFacts(
            json=tokenizer_json,
            vocab_size=vocab_size,
            eos_token_ids=tuple(sorted(eos_token_ids)),
            num_threads=num_threads or os.cpu_count() or 1,
        )
        return cls(facts, config or ConstraintConfig())

    def validate(self, spec: ConstraintSpec) -> list[str]:
        """Returns what a lenient spec leaves out, one line a keyword.

        Raises InvalidConstraintError with the reason if the spec cannot be compiled.
        """
        self._check_size(spec)
        return self._backend(spec.kind).validate(spec)

    def start_validating(self, spec: ConstraintSpec) -> Future[list[str]]:
        """`validate` in a worker thread."""
        return self._compilers.submit(self.validate, spec)

    def compile(self, spec: ConstraintSpec) -> Future[CompiledConstraint]:
        """Compile in a worker thread, or find it compiled. Failures are kept as well."""
        with self._lock:
            future = self._compiled.get(spec)
            if future is None:
                future = self._compilers.submit(self._compile, spec)
                self._compiled[spec] = future
                if len(self._compiled) > MAX_CACHED_SPECS:
                    self._compiled.popitem(last=False)
            self._compiled.move_to_end(spec)
        return future

    def lease(self, spec: ConstraintSpec) -> Future[Lease]:
        """A constraint of that spec with its first mask, made by a worker thread if need be."""
        compiled = self.compile(spec)
        # In the queue behind the compilation, so that waiting for that cannot block it.
        return self._compilers.submit(lambda: self._lease(compiled.result()))

    def take_compile_seconds(self) -> list[float]:
        """How long each compilation since the last call took. What was found compiled took none."""
        with self._lock:
            seconds, self._compile_seconds = self._compile_seconds, []
        return seconds

    def take_mask_seconds(self) -> float:
        """How long filling masks took since the last call, added up over the calls."""
        return self._masks.take_seconds()

    def get_constraint(self, compiled: CompiledConstraint) -> Constraint:
        """An idle constraint of that spec, else a new one, which may take as long as compiling."""
        with self._lock:
            if compiled.pool:
                return compiled.pool.pop()
        return compiled.backend.create(compiled.spec)

    def return_constraint(
        self, compiled: CompiledConstraint, constraint: Constraint, mask: Mask | None = None
    ) -> None:
        """Give a constraint back, once `mask` is ready; one that erred is dropped."""
        if mask is not None and not mask.is_ready:
            mask.filled.add_done_callback(lambda _: self.return_constraint(compiled, constraint))
            return
        if constraint.error is not None:
            return
        constraint.reset()
        with self._lock:
            if len(compiled.pool) < MAX_POOLED:
                compiled.pool.append(constraint)

    def allocate_bitmask(self, rows: int) -> Bitmask:
        """A bitmask that allows nothing yet."""
        return self._masks.allocate(rows)

    def start_filling(self, rows: Seq[tuple[CompiledConstraint, Constraint]]) -> list[Mask]:
        """Begin to fill a mask for each, all together, while the caller does something else."""
        return self._masks.start(rows)

    def close(self) -> None:
        """Let the worker threads end."""
        self._compilers.shutdown(wait=False, cancel_futures=True)
        self._masks.close()

    def _backend(self, kind: ConstraintKind) -> ConstraintBackend:
        return self._backends[self._config.backend_of(kind)]

    def _compile(self, spec: ConstraintSpec) -> CompiledConstraint:
        self._check_size(spec)
        backend = self._backend(spec.kind)
        start = time.perf_counter()
        compiled = CompiledConstraint(spec, backend, sets_temperature=sets_temperature(spec))
        compiled.pool.append(self._lease(compiled).constraint)
        with self._lock:
            self._compile_seconds.append(time.perf_counter() - start)
        return compiled

    def _lease(self, compiled: CompiledConstraint) -> Lease:
        constraint = self.get_constraint(compiled)
        bitmask = self.allocate_bitmask(1)
        start = time.perf_counter()
        compiled.backend.fill_bitmasks([(constraint, 0)], bitmask)
        compiled.is_slow |= time.perf_counter() - start > SLOW_SECONDS
        if constraint.error is not None:  # it shows when it is first asked
            raise InvalidConstraintError(constraint.error)
        return Lease(compiled, constraint, Mask.ready(bitmask[0]))

    def _check_size(self, spec: ConstraintSpec) -> None:
        size, most = len(spec.value.encode()), self._config.max_bytes
        if size > most:
            raise InvalidConstraintError(f"it has {size} bytes, more than {most}")
