"""Do constraints allow what their JSON schemas allow, and nothing else? And how fast are masks?

Reads a folder of MaskBench-format files: each a JSON object with `schema` and `tests`, a list of
`{"data": …, "valid": bool}`. Each test's data, as compact JSON, is walked token by token.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer

from tokenloom_engine.checkpoint import resolve_checkpoint
from tokenloom_engine.constraints.backends import backend_names
from tokenloom_engine.constraints.base import Constraint, InvalidConstraintError
from tokenloom_engine.constraints.config import ConstraintConfig
from tokenloom_engine.constraints.factory import ConstraintFactory
from tokenloom_engine.constraints.masks import CompiledConstraint
from tokenloom_engine.constraints.spec import ConstraintSpec
from tokenloom_server.bundled_model import bundled_model_path

OUTCOMES = ("passing", "refused", "valid_rejected", "invalid_accepted")
MODES = {"strict": (False,), "lenient": (True,), "fallback": (False, True)}
"""Whether schemas are compiled leniently: the first way in which a schema compiles counts."""


@dataclass
class Report:
    """What came of all schemas, by one back end in one mode."""

    backend: str
    mode: str
    outcomes: Counter[str] = field(default_factory=Counter)
    not_passing: dict[str, str] = field(default_factory=dict)
    first_mask_ms: list[float] = field(default_factory=list)
    mask_us: list[float] = field(default_factory=list)

    def add(self, name: str, outcome: str, reason: str = "") -> None:
        """Add one file's outcome."""
        self.outcomes[outcome] += 1
        if outcome != "passing":
            self.not_passing[name] = f"{outcome}: {reason}" if reason else outcome

    def as_json(self) -> str:
        """One line with the counts and the percentiles."""
        return json.dumps(
            {
                "backend": self.backend,
                "mode": self.mode,
                "schemas": self.outcomes.total(),
                **{outcome: self.outcomes[outcome] for outcome in OUTCOMES},
                "first_mask_ms": _percentiles(self.first_mask_ms),
                "masks": len(self.mask_us),
                "mask_us": _percentiles(self.mask_us),
            }
        )


class Conformance:
    """Checks schemas with one back end."""

    def __init__(
        self, tokenizer: Tokenizer, vocab_size: int, eos_token_id: int, report: Report
    ) -> None:
        self._tokenizer = tokenizer
        self._eos_token_id = eos_token_id
        self._report = report
        self._factory = ConstraintFactory.for_tokenizer(
            tokenizer.to_str(),
            vocab_size,
            [eos_token_id],
            ConstraintConfig(backends={"json_schema": report.backend}),
            num_threads=1,
        )
        self._bitmask = self._factory.allocate_bitmask(1)
        self._factory.compile(ConstraintSpec("json_schema", "{}")).result()  # loads the library

    def check(self, name: str, case: dict[str, object]) -> None:
        """Add one file's outcome to the report."""
        refusal = ""
        for is_lenient in MODES[self._report.mode]:
            spec = ConstraintSpec("json_schema", json.dumps(case["schema"]), lenient=is_lenient)
            start = time.perf_counter()
            try:
                compiled = self._factory.compile(spec).result()
            except InvalidConstraintError as error:
                refusal = str(error).strip().splitlines()[0]
                continue
            self._mask(compiled, self._factory.get_constraint(compiled))
            self._report.first_mask_ms.append((time.perf_counter() - start) * 1e3)
            self._report.add(name, self._outcome(compiled, case["tests"]))
            return
        self._report.add(name, "refused", refusal)

    def close(self) -> None:
        """Let the threads end."""
        self._factory.close()

    def _outcome(self, compiled: CompiledConstraint, tests: object) -> str:
        assert isinstance(tests, list)
        worst = "passing"
        for test in tests:
            constraint = self._factory.get_constraint(compiled)
            text = json.dumps(test["data"], separators=(",", ":"), ensure_ascii=False)
            is_allowed = self._allows(compiled, constraint, text)
            self._factory.return_constraint(compiled, constraint)
            if is_allowed and not test["valid"]:
                return "invalid_accepted"
            if test["valid"] and not is_allowed:
                worst = "valid_rejected"
        return worst

    def _allows(self, compiled: CompiledConstraint, constraint: Constraint, text: str) -> bool:
        ids = self._tokenizer.encode(text, add_special_tokens=False).ids
        for id in [*ids, self._eos_token_id]:
            if constraint.is_terminated:
                return id == self._eos_token_id and constraint.error is None
            self._report.mask_us.append(self._mask(compiled, constraint) * 1e6)
            word = int(self._bitmask[0, id // 32])
            if not word >> (id % 32) & 1:
                return False
            if id != self._eos_token_id and not constraint.accept_tokens([id]):
                return False
        return True

    def _mask(self, compiled: CompiledConstraint, constraint: Constraint) -> float:
        """Fill the mask; returns the seconds that it took."""
        start = time.perf_counter()
        compiled.backend.fill_bitmasks([(constraint, 0)], self._bitmask)
        return time.perf_counter() - start


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of MaskBench-format files")
    parser.add_argument("--backend", choices=[*backend_names(), "all"], default="llguidance")
    parser.add_argument(
        "--mode",
        choices=[*MODES, "all"],
        default="strict",
        help="lenient leaves out keywords that the back end does not know; fallback does so for "
        "schemas that are refused otherwise",
    )
    parser.add_argument("--verbose", action="store_true", help="name each schema that fails, why")
    arguments = parser.parse_args()
    folder = resolve_checkpoint(bundled_model_path(), None, torch.bfloat16).path
    config = json.loads((folder / "config.json").read_text())
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    for backend in backend_names() if arguments.backend == "all" else [arguments.backend]:
        for mode in MODES if arguments.mode == "all" else [arguments.mode]:
            report = Report(backend, mode)
            conformance = Conformance(
                tokenizer, config["vocab_size"], config["eos_token_id"], report
            )
            for name, case in _cases(arguments.data):
                conformance.check(name, case)
            conformance.close()
            if arguments.verbose:
                for name, reason in report.not_passing.items():
                    sys.stderr.write(f"{backend} {mode} {name}: {reason}\n")
            sys.stdout.write(report.as_json() + "\n")
            sys.stdout.flush()
    return 0


def _cases(folder: Path) -> Iterator[tuple[str, dict[str, object]]]:
    for file in sorted(folder.glob("*.json")):
        yield file.name, json.loads(file.read_text())


def _percentiles(values: list[float]) -> dict[str, float]:
    if not values:
        return {}
    points = {"p50": 50, "p90": 90, "p99": 99, "max": 100}
    return {name: round(float(np.percentile(values, p)), 2) for name, p in points.items()}


if __name__ == "__main__":
    sys.exit(main())
