"""From specs to constraints: validation, compilation off the step, pools of warm instances."""

from __future__ import annotations

import threading
from collections.abc import Sequence as Seq
from concurrent.futures import Future
from typing import NamedTuple

import msgspec

from tokenloom_engine.cgroup import usable_cores
from tokenloom_engine.constraints.allowance import TOO_DEAR
from tokenloom_engine.constraints.backends import load_backend
from tokenloom_engine.constraints.base import (
    Bitmask,
    Constraint,
    ConstraintBackend,
    InvalidConstraintError,
    TokenizerFacts,
)
from tokenloom_engine.constraints.compilations import Compilations
from tokenloom_engine.constraints.config import DEFAULT_BACKEND, ConstraintConfig
from tokenloom_engine.constraints.gbnf import lark_of_gbnf
from tokenloom_engine.constraints.lark import sets_temperature
from tokenloom_engine.constraints.latency import Latency
from tokenloom_engine.constraints.mask_filler import MaskFiller
from tokenloom_engine.constraints.masks import CompiledConstraint, Mask
from tokenloom_engine.constraints.nested_schema import nested_schema
from tokenloom_engine.constraints.nesting import nesting
from tokenloom_engine.constraints.notation import grammar_notation
from tokenloom_engine.constraints.outlook import Path
from tokenloom_engine.constraints.rehearsal import rehearse
from tokenloom_engine.constraints.schema_fault import find_fault
from tokenloom_engine.constraints.spec import ConstraintKind, ConstraintSpec

MAX_POOLED = 64
"""Idle constraints kept per spec."""
MAX_POOLED_CHARACTERS = 4_000_000
"""Text of a spec, times its idle constraints."""
JSON_KINDS: tuple[ConstraintKind, ...] = ("json_schema", "choice", "structural_tag")
"""Whose value is JSON."""


class UnsupportedKindError(ValueError):
    """A back end was chosen for kinds of specs that it does not compile."""

    def __init__(self, name: str, kinds: Seq[ConstraintKind]) -> None:
        remedy = ",".join(f"{kind}={DEFAULT_BACKEND}" for kind in kinds)
        super().__init__(
            f"{name} does not compile {', '.join(kinds)}; let {DEFAULT_BACKEND} do it: "
            f"--constraint-backend {remedy}"
        )


class Lease(NamedTuple):
    """A constraint that is one sequence's alone until it is returned."""

    compiled: CompiledConstraint
    constraint: Constraint
    first_mask: Mask
    latency: Latency


class ConstraintFactory:
    """One per tokenizer. Stateless to its callers and safe in any thread.

    A sequence takes its own constraint with `lease` (or `get_constraint`) and gives it back with
    `return_constraint`; between the two nobody else has it.
    """

    def __init__(
        self,
        tokenizer: TokenizerFacts,
        config: ConstraintConfig,
        latency: Latency | None = None,
    ) -> None:
        """Load the back ends.

        Raises ImportError if one's library is not installed, and UnsupportedKindError if one does
        not compile a kind that the config gives it.
        """
        self._config = config
        self.latency = latency or Latency()
        self._backends: dict[str, ConstraintBackend] = {
            name: load_backend(name, tokenizer, config, self.latency)
            for name in {DEFAULT_BACKEND, *config.backends.values()}
        }
        self._check_kinds()
        self._compilations = Compilations(self._compile, tokenizer.num_threads)
        self._masks = MaskFiller(
            -(-tokenizer.vocab_size // 32), tokenizer.num_threads, self.latency
        )
        self._lock = threading.Lock()

    @classmethod
    def for_tokenizer(
        cls,
        tokenizer_json: str,
        vocab_size: int,
        eos_token_ids: Seq[int],
        config: ConstraintConfig | None = None,
        num_threads: int | None = None,
        latency: Latency | None = None,
    ) -> ConstraintFactory:
        """Make a factory over a tokenizer.json's text.

        `vocab_size` is the width of the logits. `eos_token_ids` are all tokens that end a text.
        Raises as the constructor does.
        """
        facts = TokenizerFacts(
            json=tokenizer_json,
            vocab_size=vocab_size,
            eos_token_ids=tuple(sorted(eos_token_ids)),
            num_threads=num_threads or usable_cores(),
        )
        return cls(facts, config or ConstraintConfig(), latency)

    def validate(self, spec: ConstraintSpec) -> list[str]:
        """Compile a spec and forget it. Returns what a lenient one leaves out, one line a keyword.

        Raises InvalidConstraintError with the reason if it cannot become a constraint. Native code
        may take for ever over a hostile spec, or end the process: see `trials`.
        """
        self._check_size(spec)
        self._check_depth(spec)
        backend = self._backend(spec.kind)
        warnings = backend.validate(spec)
        constraint = self._lease(CompiledConstraint(spec, backend)).constraint
        rehearse(constraint, backend, self.allocate_bitmask(1), self.latency)
        return warnings

    def translate(self, spec: ConstraintSpec) -> ConstraintSpec:
        """Translate GBNF for its back end: it needs the GIL, so no step is to wait for it.

        Raises InvalidConstraintError.
        """
        is_ours = self._config.backend_of(spec.kind) == DEFAULT_BACKEND
        if not (spec.kind == "grammar" and is_ours and grammar_notation(spec.value) == "gbnf"):
            return spec
        self._check_size(spec)
        try:
            return msgspec.structs.replace(spec, value=lark_of_gbnf(spec.value))
        except (ValueError, RecursionError) as error:
            raise InvalidConstraintError(str(error)) from error

    def find_fault(self, spec: ConstraintSpec, reason: str) -> str | None:
        """The JSON pointer of what is to blame in a JSON Schema that was refused for that reason.

        In a structural tag, it is a schema in it, and the pointer is within that.

        May take as long as `validate`, several times. None if it cannot be told.
        """
        if spec.kind == "structural_tag":
            if (nested := nested_schema(spec.value, reason)) is None:
                return None
            lenient = spec.lenient if nested.lenient is None else nested.lenient
            schema = ConstraintSpec(
                "json_schema", nested.schema, spec.whitespace_pattern, lenient=lenient
            )
            return self.find_fault(schema, nested.reason)
        if spec.kind != "json_schema" or nesting(spec.value) > self._config.max_depth:
            return None
        if reason == TOO_DEAR:  # the whole is to blame
            return None

        def reason_of(schema: str) -> str | None:
            try:
                self.validate(msgspec.structs.replace(spec, value=schema))
            except InvalidConstraintError as error:
                return str(error)
            return None

        return find_fault(spec.value, reason, reason_of)

    def compile(self, spec: ConstraintSpec) -> Future[CompiledConstraint]:
        """Compile in a worker thread, or find it compiled. Failures are kept as well."""
        return self._compilations.start(spec)

    def lease(self, spec: ConstraintSpec) -> Future[Lease]:
        """A constraint of that spec with its first mask, made by a worker thread if need be."""
        compiled = self.compile(spec)
        return self._compilations.submit(lambda: self._lease(compiled.result()))

    def compile_cpu_seconds(self, spec: ConstraintSpec) -> float:
        """CPU time that the compilation of a spec has taken so far; 0 if it does not run."""
        return self._compilations.cpu_seconds(spec)

    def take_compile_seconds(self) -> list[float]:
        """How long each compilation since the last call took. What was found compiled took none."""
        return self._compilations.take_seconds()

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
            characters = len(compiled.pool) * len(compiled.spec.value)
            if len(compiled.pool) < MAX_POOLED and characters < MAX_POOLED_CHARACTERS:
                compiled.pool.append(constraint)

    def allocate_bitmask(self, rows: int) -> Bitmask:
        """A bitmask that allows nothing yet."""
        return self._masks.allocate(rows)

    def start_filling(self, rows: Seq[tuple[CompiledConstraint, Constraint]]) -> list[Mask]:
        """Begin to fill a mask for each, all together, while the caller does something else."""
        return self._masks.start(rows)

    def look_ahead(
        self, compiled: CompiledConstraint, constraint: Constraint, mask: Mask | None, path: Path
    ) -> Mask:
        """Begin to find out what a constraint says along a path; `mask` is the present one.

        The new mask is in the place of that, which must be ready, or None.
        """
        return self._masks.look_ahead(compiled, constraint, mask, path)

    def close(self) -> None:
        """Let the worker threads end."""
        self._compilations.close()
        self._masks.close()

    def _check_kinds(self) -> None:
        unsupported: dict[str, list[ConstraintKind]] = {}
        for kind, name in self._config.backends.items():
            if kind not in self._backends[name].kinds:
                unsupported.setdefault(name, []).append(kind)
        for name, kinds in unsupported.items():
            raise UnsupportedKindError(name, kinds)

    def _backend(self, kind: ConstraintKind) -> ConstraintBackend:
        return self._backends[self._config.backend_of(kind)]

    def _compile(self, spec: ConstraintSpec) -> CompiledConstraint:
        self._check_size(spec)
        backend = self._backend(spec.kind)
        compiled = CompiledConstraint(spec, backend, sets_temperature=sets_temperature(spec))
        compiled.pool.append(self._lease(compiled).constraint)
        return compiled

    def _lease(self, compiled: CompiledConstraint) -> Lease:
        constraint = self.get_constraint(compiled)
        bitmask = self.allocate_bitmask(1)
        begun = self.latency.clock.begin()
        compiled.backend.fill_bitmasks([(constraint, 0)], bitmask)
        compiled.judge_mask(self.latency.clock.end(begun), self.latency.limits)
        if constraint.error is not None:  # it shows when it is first asked
            raise InvalidConstraintError(constraint.error)
        return Lease(compiled, constraint, Mask.ready(bitmask[0]), self.latency)

    def _check_size(self, spec: ConstraintSpec) -> None:
        size, most = len(spec.value.encode()), self._config.max_bytes
        if size > most:
            raise InvalidConstraintError(
                f"it has {size} bytes, more than the {most} of --max-grammar-bytes"
            )

    def _check_depth(self, spec: ConstraintSpec) -> None:
        depth = nesting(spec.value) if spec.kind in JSON_KINDS else 0
        if depth > self._config.max_depth:
            raise InvalidConstraintError(
                f"it is nested {depth} deep, more than the {self._config.max_depth} of "
                "--max-grammar-depth"
            )
