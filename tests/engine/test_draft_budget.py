"""Which drafts pay: by their odds, by what else is in the step, by what forwards have cost."""

from __future__ import annotations

import math

import pytest

from tokenloom_engine.draft_budget import ENOUGH, FIRST_KNEE, DraftBudget
from tokenloom_engine.drafts import Guess


def test_more_rows_and_more_tokens_want_better_odds() -> None:
    budget = DraftBudget()
    by_rows = [budget.least_odds(rows, rows) for rows in (1, 4, 8, 16, 32, 64)]
    assert by_rows == sorted(by_rows) and by_rows[0] < 0.02 and 0.8 < by_rows[-1] < 1
    by_tokens = [budget.least_odds(tokens, 8) for tokens in (8, 16, 64, 256)]
    assert by_tokens == sorted(by_tokens) and len(set(by_tokens)) == 4, "a chunk is no free ride"


def test_the_most_probable_drafts_are_taken_as_far_as_they_pay() -> None:
    budget = DraftBudget()
    sure, fair, poor = (Guess([1] * 8, [odds**i for i in range(1, 9)]) for odds in (0.99, 0.7, 0.1))
    assert budget.share([poor], 1, 1) == [1]
    assert budget.share([sure, Guess(), fair, poor], 4, 4) == [8, 0, 3, 0]
    counts = budget.share([sure] * 32, 32, 32)
    assert 0 < sum(counts) < 32 * 2 and max(counts) - min(counts) <= 1, "neighbours wait for it"
    assert budget.share([fair] * 32, 32, 32) == [0] * 32


@pytest.mark.parametrize("knee", [3.0, 12.0, 100.0])
def test_what_forwards_cost_is_learned(knee: float) -> None:
    budget = DraftBudget()
    for _ in range(ENOUGH - 1):
        for tokens in (1, 32, 1000):
            budget.observe(tokens, 0.001 * math.hypot(knee, tokens))
    assert budget.knee == FIRST_KNEE
    for tokens in (1, 32):
        budget.observe(tokens, 0.001 * math.hypot(knee, tokens))
    assert budget.knee == pytest.approx(knee, rel=0.1)
    for _ in range(100):
        budget.observe(1, 0.001 * math.hypot(knee, 1))
        budget.observe(64, 0.002 * math.hypot(knee, 64))
    assert budget.knee < 0.7 * knee, "the machine has become busier, or contexts longer"


@pytest.mark.parametrize("tokens", [1, 32])
def test_a_single_late_forward_changes_little(tokens: int) -> None:
    budget = DraftBudget()
    for _ in range(2 * ENOUGH):
        for some in (1, 32):
            budget.observe(some, 0.001 * math.hypot(12, some))
    before = budget.knee
    budget.observe(tokens, 0.05 * math.hypot(12, tokens))
    assert budget.knee == pytest.approx(before, rel=0.15)


def test_where_tokens_cost_nothing_nearly_all_drafts_pay() -> None:
    budget = DraftBudget()
    for _ in range(ENOUGH):
        budget.observe(1, 0.01)
        budget.observe(100, 0.01)
    assert budget.least_odds(32, 32) < 0.1
