"""Guesses of what follows: what they rest on, how many they are, and when there are none."""

from __future__ import annotations

import random

import pytest

from tokenloom_engine.drafts import MAX_READ, MAX_ROWS, Drafter, worthwhile


def test_what_followed_is_guessed_again() -> None:
    drafter = Drafter([1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3], most=3)
    assert drafter.draft(num_rows=1, room=9) == [4, 5, 6]
    assert drafter.draft(num_rows=1, room=2) == [4, 5]
    assert drafter.draft(num_rows=1, room=0) == []


def test_the_longest_beginning_counts_and_of_its_places_the_last() -> None:
    ids = [1, 2, 3, 40, 9, 3, 50, 9, 1, 2, 3, 60, 7, 3, 70, 1, 2, 3]
    assert Drafter(ids, most=1).draft(1, 9) == [60]
    assert Drafter([*ids[:-3], 5, 2, 3], most=1).draft(1, 9) == [60], "two of them"
    assert Drafter([*ids[:-3], 5, 6, 3], most=1).draft(1, 9) == [70], "one"
    assert Drafter([*ids, 8], most=1).draft(1, 9) == [], "never seen before"


def test_what_repeats_is_guessed_on_beyond_its_end() -> None:
    assert Drafter([9, 1, 2, 1, 2, 1, 2], most=5).draft(1, 9) == [1, 2, 1]
    drafter = Drafter([9, 1, 2, 1, 2, 1, 2], most=40)
    for _ in range(20):
        drafter._ids.extend([1, 2])
        drafter.draft(1, 40)
    assert drafter.draft(1, 40) == [1, 2] * 20


def test_odds_follow_what_comes() -> None:
    """It learns also from guesses that were not drafted: it drafts again when they are right."""
    chance = random.Random(1)
    ids = [chance.randrange(8) for _ in range(64)]
    drafter = Drafter(ids, most=8)

    def drafted(num_rows: int, new: list[int]) -> int:
        total = 0
        for id in new:
            ids.append(id)
            total += len(drafter.draft(num_rows, 99))
        return total

    drafted(8, [chance.randrange(8) for _ in range(200)])
    assert drafted(8, [chance.randrange(8) for _ in range(50)]) == 0, "noise"
    again = [5, 3, 0, 7, 2, 6, 1, 4, 4, 2, 7, 5] * 8
    drafted(8, again)
    assert drafted(8, again[:12]) > 4 * 12
    assert drafted(MAX_ROWS, again[:12]) > 12
    assert drafted(MAX_ROWS + 1, again[:12]) == 0


def test_a_long_prompt_is_read_over_several_steps() -> None:
    ids = [*range(MAX_READ), 1, 2, 3]
    drafter = Drafter(ids, most=2)
    assert drafter.draft(1, 9) == []
    assert drafter.draft(1, 9) == [4, 5]


@pytest.mark.parametrize("num_rows", [1, 4, 8, 32])
def test_more_rows_want_better_odds(num_rows: int) -> None:
    counts = [worthwhile(odds / 100, num_rows) for odds in range(1, 100)]
    assert counts == sorted(counts)
    assert counts[0] == 0 and counts[-1] > 20
    fewer = [worthwhile(odds / 100, num_rows + 1) for odds in range(1, 100)]
    assert all(a >= b for a, b in zip(counts, fewer, strict=True)) and counts != fewer
