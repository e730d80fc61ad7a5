"""An engine does not wait for ever for a constraint, and nobody waits with it."""

from __future__ import annotations

import json
import time

import pytest

from tests.engine.conftest import Encode, MakeEngine
from tests.engine.running import run, submission
from tokenloom_engine.constraints.config import ConstraintConfig
from tokenloom_engine.constraints.factory import ConstraintFactory
from tokenloom_engine.constraints.masks import CompiledConstraint
from tokenloom_engine.constraints.spec import ConstraintSpec


def test_a_slow_compilation_is_given_up(make_engine: MakeEngine, encode: Encode) -> None:
    engine = make_engine(constraints=ConstraintConfig(timeout_seconds=0.2))
    prompt = encode("Once upon a time")
    patterns: dict[str, object] = {
        f"^{chr(97 + i // 26)}{chr(97 + i % 26)}.*$": {} for i in range(200)
    }
    slow = ConstraintSpec("json_schema", json.dumps({"patternProperties": patterns}))
    quick = ConstraintSpec("regex", "[ab]{4}")
    results = run(
        engine,
        [
            submission(0, prompt, constraint=slow),
            submission(1, prompt, constraint=quick),
            submission(2, prompt, 4, ignore_eos=True),
            submission(3, prompt, constraint=slow),  # the same is given up as well
        ],
    )
    for id in (0, 3):
        assert results[id].refusal == "grammar is not valid: it took too long to compile"
        assert not results[id].tokens
    assert len(results[1].text) == 4
    assert len(results[2].ids) == 4


def test_only_cpu_time_counts(
    make_engine: MakeEngine, encode: Encode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where other work takes the core for a while."""
    compile = ConstraintFactory._compile

    def compile_late(self: ConstraintFactory, spec: ConstraintSpec) -> CompiledConstraint:
        time.sleep(0.5)
        return compile(self, spec)

    monkeypatch.setattr(ConstraintFactory, "_compile", compile_late)
    engine = make_engine(constraints=ConstraintConfig(timeout_seconds=0.2))
    spec = ConstraintSpec("regex", "[ab]{4}")
    assert len(run(engine, [submission(0, encode("Once"), constraint=spec)])[0].text) == 4
