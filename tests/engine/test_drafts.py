"""Guesses of what follows: what they rest on, how many they are, and when there are none."""

from __future__ import annotations

import random

from tokenloom_engine.drafts import MAX_READ, Drafter


def guess(ids: list[int], most: int, room: int = 9) -> list[int]:
    """What a new drafter guesses, whatever its odds."""
    return Drafter(ids, most).guess(room, 0.0).ids


def test_what_followed_is_guessed_again() -> None:
    ids = [1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3]
    assert guess(ids, 3) == [4, 5, 6]
    assert guess(ids, 3, room=2) == [4, 5]
    assert guess(ids, 3, room=0) == []


def test_the_longest_beginning_counts_and_of_its_places_the_last() -> None:
    ids = [1, 2, 3, 40, 9, 3, 50, 9, 1, 2, 3, 60, 7, 3, 70, 1, 2, 3]
    assert guess(ids, 1) == [60]
    assert guess([*ids[:-3], 5, 2, 3], 1) == [60], "two of them"
    assert guess([*ids[:-3], 5, 6, 3], 1) == [70], "one"
    assert guess([*ids, 8], 1) == [], "never seen before"


def test_what_repeats_is_guessed_on_beyond_its_end() -> None:
    assert guess([9, 1, 2, 1, 2, 1, 2], 5) == [1, 2, 1, 2, 1]


def test_odds_follow_what_comes() -> None:
    """It learns also from guesses that were not drafted: it drafts again when they are right."""
    chance = random.Random(1)
    ids = [chance.randrange(8) for _ in range(64)]
    drafter = Drafter(ids, most=8)

    def drafted(least: float, new: list[int]) -> int:
        total = 0
        for id in new:
            ids.append(id)
            total += len(drafter.guess(99, least).ids)
        return total

    drafted(0.4, [chance.randrange(8) for _ in range(200)])
    assert drafted(0.4, [chance.randrange(8) for _ in range(50)]) == 0, "noise"
    again = [5, 3, 0, 7, 2, 6, 1, 4, 4, 2, 7, 5] * 8
    drafted(0.4, again)
    assert drafted(0.4, again[:12]) > 4 * 12
    assert drafted(0.8, again[:12]) > 12
    ids.append(again[1])
    assert drafter.guess(99, 0.8).ids == [], "after a wrong guess it is careful at once"


def test_odds_of_a_guess_fall_from_token_to_token() -> None:
    guess = Drafter([*range(40), *range(3)], most=16).guess(16, 0.0)
    assert len(guess.odds) == len(guess.ids) == 16
    assert guess.odds == sorted(guess.odds, reverse=True)
    assert 0 < guess.odds[-1] < guess.odds[0] < 1


def test_a_long_prompt_is_read_over_several_steps() -> None:
    drafter = Drafter([*range(MAX_READ), 1, 2, 3], most=2)
    assert drafter.guess(9, 0.0).ids == []
    assert drafter.guess(9, 0.0).ids == [4, 5]
