"""What is kept of constraints has a bound, however many differ and however large they are."""

from __future__ import annotations

import gc
import json
import weakref
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import psutil
import pytest

from tokenloom_engine.constraints import compilations as compilations_module
from tokenloom_engine.constraints import factory as factory_module
from tokenloom_engine.constraints.compilations import MAX_CACHED_SPECS
from tokenloom_engine.constraints.factory import ConstraintFactory
from tokenloom_engine.constraints.spec import ConstraintSpec


@pytest.fixture
def factory(tokenizer_file: Path) -> ConstraintFactory:
    return ConstraintFactory.for_tokenizer(tokenizer_file.read_text(), 49152, [2])


def test_new_schemas_again_and_again(factory: ConstraintFactory) -> None:
    process = psutil.Process()
    for i in range(MAX_CACHED_SPECS + 100):
        _run(factory, _schema(f"first {i}"))
    growth: list[int] = []
    for round in range(3):  # a leak grows in each; the heap of other tests only now and then
        gc.collect()
        before = process.memory_info().rss
        for i in range(1000):
            _run(factory, _schema(f"then {round} {i}"))
        growth.append(process.memory_info().rss - before)
    assert min(growth) < 2048 * 1000


def test_the_oldest_are_forgotten(
    factory: ConstraintFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compilations_module, "MAX_CACHED_CHARACTERS", 1000)
    kept = [_watched(factory, character * 300) for character in "abc"]
    assert all(future() is not None for future in kept)
    assert factory.compile(ConstraintSpec("regex", "a" * 300)) is kept[0]()
    _watched(factory, "d" * 300)
    assert [future() is not None for future in kept] == [True, False, True]
    large = _watched(factory, "e" * 2000)
    assert [future() is not None for future in (*kept, large)] == [False, False, False, True]
    monkeypatch.setattr(compilations_module, "MAX_CACHED_SPECS", 2)
    few = [_watched(factory, character) for character in "xyz"]
    assert [future() is not None for future in (large, *few)] == [False, False, True, True]


def test_few_idle_constraints_of_a_large_spec(
    factory: ConstraintFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(factory_module, "MAX_POOLED_CHARACTERS", 1000)
    for length, most in ((5, factory_module.MAX_POOLED), (400, 3), (3000, 1)):
        compiled = factory.compile(ConstraintSpec("regex", "a" * length)).result()
        taken = [factory.get_constraint(compiled) for _ in range(70)]
        for constraint in taken:
            factory.return_constraint(compiled, constraint)
        assert len(compiled.pool) == most


def _schema(name: str) -> ConstraintSpec:
    properties = {name: {"type": "string"}, "tags": {"items": {"type": "integer"}}}
    return ConstraintSpec("json_schema", json.dumps({"properties": properties}))


def _run(factory: ConstraintFactory, spec: ConstraintSpec) -> None:
    lease = factory.lease(spec).result()
    factory.return_constraint(lease.compiled, lease.constraint)


def _watched(factory: ConstraintFactory, pattern: str) -> weakref.ref[Future[Any]]:
    future = factory.compile(ConstraintSpec("regex", pattern))
    future.result()
    return weakref.ref(future)
