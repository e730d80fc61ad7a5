"""Trials: a spec that hangs, crashes or grows takes its worker with it, and nobody else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path

import psutil
import pytest

from tokenloom_engine.constraints.base import InvalidConstraintError, TokenizerFacts
from tokenloom_engine.constraints.config import ConstraintConfig
from tokenloom_engine.constraints.spec import ConstraintSpec
from tokenloom_engine.constraints.trials.messages import Trial, Verdict, frame
from tokenloom_engine.constraints.trials.trials import (
    Admission,
    Trials,
    TrialsEndedError,
)
from tokenloom_engine.constraints.trials.worker import LOW_PRIORITY, MAX_TRIALS
from tokenloom_engine.frames import FrameBuffer

TIMEOUT_SECONDS = 0.3


@pytest.fixture(scope="module")
def facts(tokenizer_file: Path) -> TokenizerFacts:
    return TokenizerFacts(
        json=tokenizer_file.read_text(), vocab_size=49152, eos_token_ids=(2,), num_threads=1
    )


@pytest.fixture(scope="module")
def trials(facts: TokenizerFacts) -> Iterator[Trials]:
    trials = Trials(facts, ConstraintConfig(timeout_seconds=TIMEOUT_SECONDS))
    assert trials.start(_easy("warm")).result(30).warnings == []
    yield trials
    trials.close()


def test_good_specs_pass_and_bad_ones_have_a_reason(trials: Trials) -> None:
    assert trials.start(ConstraintSpec("regex", "[a-z]+")).result(10).warnings == []
    assert "unclosed group" in _refusal(trials.start(ConstraintSpec("regex", "(")))
    schema = {"properties": {"tags": {"type": "array", "uniqueItems": True}}}
    spec = ConstraintSpec("json_schema", json.dumps(schema))
    place = "#/properties/tags/uniqueItems"
    for _ in range(2):  # the second time from memory
        reason = _refusal(trials.start(spec))
        assert reason == f'Unimplemented keys: ["uniqueItems"] (at {place})'
    lenient = ConstraintSpec("json_schema", json.dumps(schema), lenient=True)
    (warning,) = trials.start(lenient).result(10).warnings
    assert warning == f'Unimplemented keys: ["uniqueItems"] (at {place})'
    assert "line 2 column 4" in _refusal(trials.start(ConstraintSpec("json_schema", '{"a":\n "b"')))


def test_what_is_slow_to_translate_comes_translated(trials: Trials) -> None:
    """For in the engine, it would hold up every step meanwhile."""
    lark = ConstraintSpec("grammar", 'start: "a"')
    assert trials.start(lark).result(10).spec is lark
    for rules in (1, 300):
        unused = "".join(f'unused{i} ::= "b"\n' for i in range(rules))
        gbnf = ConstraintSpec("grammar", f'root ::= "a"\n{unused}')
        admitted = trials.start(gbnf).result(10).spec
        assert "::=" not in admitted.value and "start" in admitted.value
        assert trials.start(gbnf).result(10).spec == admitted
        assert trials.start(admitted).result(10).spec == admitted
    assert "a new line or the end is expected" in _refusal(
        trials.start(ConstraintSpec("grammar", "a ::= b c ::="))
    )


def test_what_was_tried_is_not_tried_again(trials: Trials) -> None:
    assert trials.start(_easy("again")).result(10).warnings == []
    start = time.monotonic()
    for _ in range(1000):
        assert trials.start(_easy("again")).done()
    assert time.monotonic() - start < 5


@pytest.mark.parametrize(
    "spec",
    [
        ConstraintSpec(
            "grammar",
            "start: r0\n" + "".join(f"r{i}: r{i + 1}\n" for i in range(10_000)) + 'r10000: "a"',
        ),
        ConstraintSpec(
            "json_schema",
            json.dumps(
                {
                    "$ref": "#/$defs/d0",
                    "$defs": {
                        f"d{i}": {"properties": {"x": {"$ref": f"#/$defs/d{i + 1}"}}}
                        for i in range(3000)
                    }
                    | {"d3000": {}},
                }
            ),
        ),
    ],
    ids=["rules", "references"],
)
def test_a_stack_that_overflows(trials: Trials, spec: ConstraintSpec) -> None:
    """Each of these ends the process that compiles it."""
    reason = _refusal(trials.start(spec))
    assert reason == "it is too large or too deeply nested to compile"
    assert trials.start(_easy("after a crash")).result(10).warnings == []


def test_an_endless_compilation_is_ended(trials: Trials) -> None:
    start = time.monotonic()
    reason = _refusal(trials.start(_endless(2)))
    assert reason == "it takes too long to compile"
    assert time.monotonic() - start >= TIMEOUT_SECONDS
    _until(lambda: _cpu_seconds_in(trials, 0.2) < 0.1)
    assert trials.start(_easy("after the endless")).result(10).warnings == []


def test_a_trial_that_nobody_waits_for_is_ended(facts: TokenizerFacts) -> None:
    trials = Trials(facts, ConstraintConfig(timeout_seconds=60))
    assert trials.start(_easy("first")).result(30).warnings == []
    future = trials.start(_endless(3))
    _until(lambda: _cpu_seconds_in(trials, 0.2) > 0.02)
    assert future.cancel()
    _until(lambda: _cpu_seconds_in(trials, 0.2) < 0.01)
    process = _process(trials)
    running = trials.start(_endless(4))
    trials.close()
    process.wait(10)
    with pytest.raises(TrialsEndedError):
        running.result(10)


def test_time_that_other_work_takes_does_not_count(facts: TokenizerFacts) -> None:
    trials = Trials(facts, ConstraintConfig(timeout_seconds=TIMEOUT_SECONDS))
    assert trials.start(_easy("first")).result(30).warnings == []
    before = _cpu_seconds_of_workers(trials)
    cpu = min(os.sched_getaffinity(0))
    loop = f"import os; os.nice(10); os.sched_setaffinity(0, [{cpu}])\nwhile True: pass"
    with subprocess.Popen([sys.executable, "-c", loop]) as busy:
        for process in (_process(trials), *_process(trials).children()):
            process.cpu_affinity([cpu])
        reason = _refusal(trials.start(_endless(40)), 60)
        busy.kill()
    assert reason == "it takes too long to compile"
    assert _cpu_seconds_of_workers(trials) - before > 0.8 * TIMEOUT_SECONDS
    trials.close()


def test_slow_ones_wait_for_each_other_and_quick_ones_pass(trials: Trials) -> None:
    slow = [trials.start(_endless(5 + i)) for i in range(5)]
    assert trials.start(_easy("beside the slow")).result(60).warnings == []
    assert not all(future.done() for future in slow)
    assert {_refusal(future, 60) for future in slow} == {"it takes too long to compile"}


def test_those_that_are_slower_do_not_hold_up_the_slow(facts: TokenizerFacts) -> None:
    """Past a second of CPU time, one goes on at once, and has no others behind it but its like."""
    trials = Trials(facts, ConstraintConfig(timeout_seconds=3))
    long = [trials.start(_endless(50 + i)) for i in range(2)]
    _until(lambda: _cpu_seconds_of_workers(trials) > 2, 60)
    assert trials.start(_slow(0)).result(60).warnings == []
    assert not all(future.done() for future in long)
    trials.close()


def test_clients_have_equal_shares(trials: Trials) -> None:
    many = [trials.start(_endless(60 + i), "hostile") for i in range(12)]
    _until(lambda: sum(future.done() for future in many) >= 1, 60)
    _refusal(trials.start(_endless(75), "other"), 60)
    assert sum(future.done() for future in many) <= 8
    for future in many:
        future.cancel()


def test_equal_specs_are_tried_once(trials: Trials) -> None:
    before = _cpu_seconds_of_workers(trials)
    same = [trials.start(_endless(80), f"client {i % 3}") for i in range(8)]
    same[0].cancel()
    time.sleep(0.2)
    same += [trials.start(_endless(80), f"client {i % 3}") for i in range(8)]
    assert {_refusal(future, 60) for future in same[1:]} == {"it takes too long to compile"}
    assert _cpu_seconds_of_workers(trials) - before < 3 * TIMEOUT_SECONDS
    assert trials.start(_easy("after the equal ones")).result(10).warnings == []


def test_a_worker_that_grows_is_ended(trials: Trials) -> None:
    """No spec is known that takes so much; so the limit itself is looked at."""
    assert trials.start(_easy("limited")).result(10).warnings == []
    (worker, *_) = _process(trials).children()
    address_space = worker.rlimit(psutil.RLIMIT_AS)[0]
    assert address_space < _process(trials).memory_info().vms + 600 * 2**20
    assert worker.rlimit(psutil.RLIMIT_STACK)[0] == 4 * 2**20
    assert worker.nice() > _process(trials).nice()


def test_workers_are_replaced_before_they_leak(trials: Trials) -> None:
    before = {worker.pid for worker in _process(trials).children()}
    for i in range(2 * MAX_TRIALS + 2):
        assert trials.start(_easy(f"spec {i}")).result(10).warnings == []
    assert before.isdisjoint(worker.pid for worker in _process(trials).children())


def test_the_trial_process_is_started_again(trials: Trials) -> None:
    """Who waits is tried again by the next one, and told only if that ends as well."""
    process = _process(trials)
    future = trials.start(_endless(20))
    workers = process.children()
    process.kill()
    assert _refusal(future) == "it takes too long to compile"
    _until(lambda: not any(worker.is_running() for worker in workers))
    assert trials.start(_easy("after it was killed")).result(30).warnings == []
    second = _process(trials)
    assert second.pid != process.pid
    future = trials.start(_slow(1))
    second.kill()
    _until(lambda: trials.pid != second.pid)
    _process(trials).kill()
    with pytest.raises(TrialsEndedError):
        future.result(10)
    assert trials.start(_easy("after it was killed twice")).result(30).warnings == []


def test_a_trial_process_that_is_stopped_is_replaced(
    facts: TokenizerFacts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tokenloom_engine.constraints.trials.connection.SILENT_SECONDS", 1.5)
    trials = Trials(facts, ConstraintConfig(timeout_seconds=2))
    assert trials.start(_easy("before")).result(30).warnings == []
    first = _process(trials)
    assert _refusal(trials.start(_endless(30)), 60) == "it takes too long to compile"
    assert _process(trials) == first, "it says that it runs"
    first.suspend()
    large = _large("stopped")  # more than a pipe holds
    waiting = [trials.start(_easy("stopped")), trials.start(large)]
    for future in waiting:
        assert future.result(60).warnings == []
    assert _process(trials) != first
    assert not first.is_running()
    trials.close()


@pytest.mark.parametrize("signal", ["suspend", "kill"])
def test_a_worker_that_is_stopped_or_killed_is_replaced(trials: Trials, signal: str) -> None:
    assert trials.start(_easy(f"before {signal}")).result(30).warnings == []
    idle = _process(trials).children()
    for worker in idle:
        getattr(worker, signal)()
    assert trials.start(_large(signal)).result(30).warnings == []
    future = trials.start(_endless(90 + len(signal)))
    _until(lambda: any(worker.nice() == LOW_PRIORITY for worker in _process(trials).children()))
    for worker in _process(trials).children():
        getattr(worker, signal)()
    assert _refusal(future) == "it takes too long to compile"
    assert not any(worker.is_running() for worker in idle)


def test_frames_may_come_in_pieces() -> None:
    messages: list[Trial | Verdict] = [
        Trial(1, ConstraintSpec("regex", "a" * 1000)),
        Verdict(2, refusal="no"),
    ]
    data = b"".join(frame(message) for message in messages)
    for size in (1, 3, 700, len(data)):
        buffer = FrameBuffer()
        found = [m for i in range(0, len(data), size) for m in buffer.feed(data[i : i + size])]
        assert [frame(message)[4:] for message in messages] == found


def _easy(name: str) -> ConstraintSpec:
    return ConstraintSpec("json_schema", json.dumps({"properties": {name: {"type": "integer"}}}))


def _endless(number: int) -> ConstraintSpec:
    """The library looks at each of ten million remainders, as far as time and memory go."""
    schema = {"type": "integer", "multipleOf": 10_000_019 + 2 * number}
    return ConstraintSpec("json_schema", json.dumps(schema))


def _large(name: str) -> ConstraintSpec:
    """Of many bytes, and little work."""
    return ConstraintSpec("json_schema", json.dumps({"description": name + "x" * 800_000}))


def _slow(number: int) -> ConstraintSpec:
    """Takes some tenths of a second."""
    patterns: dict[str, object] = {
        f"^{number}{chr(97 + i // 26)}{chr(97 + i % 26)}.*$": {} for i in range(150)
    }
    return ConstraintSpec("json_schema", json.dumps({"patternProperties": patterns}))


def _refusal(future: Future[Admission], seconds: float = 30) -> str:
    with pytest.raises(InvalidConstraintError) as refused:
        future.result(seconds)
    return str(refused.value)


def _process(trials: Trials) -> psutil.Process:
    return psutil.Process(trials.pid)


def _cpu_seconds_in(trials: Trials, seconds: float) -> float:
    """CPU time of the trial process and its workers in a while."""

    def used() -> float:
        root = _process(trials)
        times = [process.cpu_times() for process in (root, *root.children())]
        return sum(time.user + time.system for time in times)

    before = used()
    time.sleep(seconds)
    return used() - before


def _cpu_seconds_of_workers(trials: Trials) -> float:
    """Of those that have ended, and of those that run."""
    root = _process(trials)
    times = root.cpu_times()
    ended = times.children_user + times.children_system
    running = [worker.cpu_times() for worker in root.children()]
    return ended + sum(time.user + time.system for time in running)


def _until(is_true: Callable[[], bool], seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while not is_true():
        assert time.monotonic() < deadline
        time.sleep(0.01)
