"""From specs to constraints: validation, compilation off the step, pools of warm instances."""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence as Seq
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np

from tokenloom_engine.constraints.base import (
    Bitmask,
    Constraint,
    ConstraintBackend,
    InvalidConstraintError,
)
from tokenloom_engine.constraints.llguidance import LlguidanceBackend
from tokenloom_engine.constraints.spec import ConstraintSpec

MAX_SPEC_BYTES = 1_000_000
MAX_CACHED_SPECS = 512
MAX_POOLED = 64
"""Idle constraints kept per spec."""


@dataclass(slots=True)
class CompiledConstraint:
    """A spec that compiled, and its idle constraints, warm from earlier sequences."""

    spec: ConstraintSpec
    pool: list[Constraint] = field(default_factory=list)


class ConstraintFactory:
    """One per tokenizer. Stateless to its callers and safe in any thread.

    A sequence takes its own constraint with `get_constraint` and gives it back with
    `return_constraint`; between the two nobody else has it.
    """

    def __init__(self, backend: ConstraintBackend, vocab_size: int, num_threads: int) -> None:
        self._backend = backend
        self._words = -(-vocab_size // 32)
        self._compilers = ThreadPoolExecutor(num_threads, thread_name_prefix="compile")
        # Its own thread: a step's bitmasks never wait for somebody's compilation.
        self._filler = ThreadPoolExecutor(1, thread_name_prefix="bitmask")
        self._compiled: OrderedDict[ConstraintSpec, Future[CompiledConstraint]] = OrderedDict()
        self._compile_seconds: list[float] = []
        self._lock = threading.Lock()

    @classmethod
    def for_tokenizer(
        cls,
        tokenizer_json: str,
        vocab_size: int,
        eos_token_ids: Seq[int],
        num_threads: int | None = None,
    ) -> ConstraintFactory:
        """Make a factory over a tokenizer.json's text.

        `vocab_size` is the width of the logits. `eos_token_ids` are all tokens that end a text.
        """
        threads = num_threads or os.cpu_count() or 1
        backend = LlguidanceBackend(tokenizer_json, vocab_size, eos_token_ids, threads)
        return cls(backend, vocab_size, threads)

    def validate(self, spec: ConstraintSpec) -> list[str]:
        """Returns what a lenient spec leaves out, one line a keyword.

        Raises InvalidConstraintError with the reason if the spec cannot be compiled.
        """
        _check_size(spec)
        return self._backend.validate(spec)

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

    def take_compile_seconds(self) -> list[float]:
        """How long each compilation since the last call took. What was found compiled took none."""
        with self._lock:
            seconds, self._compile_seconds = self._compile_seconds, []
        return seconds

    def get_constraint(self, compiled: CompiledConstraint) -> Constraint:
        """An idle constraint of that spec, else a new one."""
        with self._lock:
            if compiled.pool:
                return compiled.pool.pop()
        return self._backend.create(compiled.spec)

    def return_constraint(self, compiled: CompiledConstraint, constraint: Constraint) -> None:
        """Give a constraint back; one that erred is dropped."""
        if constraint.error is not None:
            return
        constraint.reset()
        with self._lock:
            if len(compiled.pool) < MAX_POOLED:
                compiled.pool.append(constraint)

    def allocate_bitmask(self, rows: int) -> Bitmask:
        """A bitmask that allows nothing yet."""
        return np.zeros((rows, self._words), dtype=np.int32)

    def fill_bitmasks(self, rows: Seq[tuple[Constraint, int]], bitmask: Bitmask) -> float:
        """Write each constraint's row. Returns the seconds that it took."""
        start = time.perf_counter()
        self._backend.fill_bitmasks(rows, bitmask)
        return time.perf_counter() - start

    def start_filling(self, rows: Seq[tuple[Constraint, int]], bitmask: Bitmask) -> Future[float]:
        """`fill_bitmasks` in another thread, while the caller runs the forward."""
        return self._filler.submit(self.fill_bitmasks, rows, bitmask)

    def close(self) -> None:
        """Let the worker threads end."""
        self._compilers.shutdown(wait=False, cancel_futures=True)
        self._filler.shutdown(wait=False, cancel_futures=True)

    def _compile(self, spec: ConstraintSpec) -> CompiledConstraint:
        _check_size(spec)
        start = time.perf_counter()
        first = self._backend.create(spec)
        with self._lock:
            self._compile_seconds.append(time.perf_counter() - start)
        return CompiledConstraint(spec, [first])


def _check_size(spec: ConstraintSpec) -> None:
    size = len(spec.value.encode())
    if size > MAX_SPEC_BYTES:
        raise InvalidConstraintError(f"it has {size} bytes, more than {MAX_SPEC_BYTES}")
