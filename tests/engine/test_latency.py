"""Who is slow: judged by several calls, by the machine's own step, and never for good."""

from __future__ import annotations

import pytest

from tests.engine.clocks import ManualTime, manual_latency
from tokenloom_engine.constraints.backends.llguidance.cost import Cost
from tokenloom_engine.constraints.call_clock import CallClock
from tokenloom_engine.constraints.latency import (
    FAR,
    MOST_SCALE,
    MOST_WINDOW,
    STEP_SECONDS,
    WINDOW,
    Latency,
    LatencyLimits,
    LatencyTracker,
)

LIMITS = LatencyLimits()


def observe(tracker: LatencyTracker, pattern: str) -> None:
    """`+` is a late call, `.` one that was not, `_` one that nobody timed."""
    for sign in pattern:
        if sign == "_":
            tracker.skip()
        else:
            tracker.observe(2.0 if sign == "+" else 0.5, 1.0, far=10)


@pytest.mark.parametrize(
    ("pattern", "is_slow"),
    [
        ("", False),
        ("+", False),
        ("..+..", False),
        ("+...+...+...", False),
        ("++", True),
        ("+.+", True),
        ("+..+", True),
        ("++...", True),
        ("++....", False),
        ("++____", False),
        ("++....+", False),
        ("++....++....", True),
        ("++....++........", False),
    ],
)
def test_two_late_calls_among_a_few_make_it_slow_for_a_while(pattern: str, is_slow: bool) -> None:
    tracker = LatencyTracker()
    observe(tracker, pattern)
    assert tracker.is_slow == is_slow


def test_what_is_slow_again_and_again_is_tried_less_and_less() -> None:
    tracker = LatencyTracker()
    windows = []
    for _ in range(12):
        observe(tracker, "++")
        count = 0
        while tracker.is_slow:
            tracker.skip()
            count += 1
        windows.append(count)
        observe(tracker, "." * WINDOW)
    assert windows[0] == WINDOW and windows[-1] == MOST_WINDOW
    assert windows == sorted(windows)


def test_a_call_that_is_far_beyond_the_limit_needs_no_second_one() -> None:
    tracker = LatencyTracker()
    tracker.observe(9.0, 1.0, far=10)
    assert not tracker.is_slow
    tracker = LatencyTracker()
    tracker.observe(11.0, 1.0, far=10)
    assert tracker.is_slow


@pytest.mark.parametrize(("step", "scale"), [(0.2, 1), (1, 1), (3, 3), (1000, MOST_SCALE)])
def test_limits_grow_with_the_step(step: float, scale: float) -> None:
    latency = Latency()
    for _ in range(100):
        latency.observe_step(step * STEP_SECONDS)
    assert latency.limits == LIMITS.scaled(scale)
    for _ in range(200):
        latency.observe_step(STEP_SECONDS / 2)
    assert latency.limits == LIMITS


def test_the_same_calls_are_dear_beside_a_short_step_and_not_beside_a_long_one() -> None:
    for step, is_dear in ((STEP_SECONDS, True), (5 * STEP_SECONDS, False)):
        now = ManualTime()
        latency = Latency(clock=CallClock(now, now))
        latency.observe_step(step)
        cost = Cost(latency, goes_back=True)
        for _ in range(2):
            begun = cost.begin()
            now.advance(3 * LIMITS.call)
            cost.end(begun)
        assert cost.is_dear == is_dear


@pytest.mark.parametrize("goes_back", [True, False])
def test_one_late_call_costs_neither_forced_runs_nor_drafts(goes_back: bool) -> None:
    now = ManualTime()
    cost = Cost(manual_latency(now), goes_back=goes_back)
    for seconds in (0.0, 0.04, 0.0, 0.0, 0.0):
        begun = cost.begin()
        now.advance(seconds)
        cost.end(begun)
        assert not cost.is_dear
        assert cost.seconds_to_look() > 0


def test_what_was_dear_is_tried_again_though_nobody_knows_what_calls_aside_take() -> None:
    now = ManualTime()
    cost = Cost(manual_latency(now), goes_back=True)
    for _ in range(2):
        begun = cost.begin()
        now.advance(0.04)
        cost.end(begun)
    assert cost.is_dear
    for _ in range(WINDOW):
        assert cost.is_dear
        cost.count_aside(0.5)  # it waited for a core, perhaps
        cost.count_mask(0.0)
    assert not cost.is_dear
    cost.count_mask(FAR * LIMITS.heavy_mask * 2)
    assert cost.is_dear, "a mask that takes so long tells enough"
