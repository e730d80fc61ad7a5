"""The order of replicas."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from tokenloom_ray.replica_ranking import rank_replicas

LOADS = {"a": 5, "b": 2, "c": 9}


def rank(
    loads: Mapping[str, int] = LOADS, preferred: str | None = None, tried: Collection[str] = ()
) -> list[str]:
    return rank_replicas(loads, preferred=preferred, tried=tried, max_imbalance=4)


def test_the_least_loaded_replica_is_first() -> None:
    assert rank() == ["b", "a", "c"]


def test_the_preferred_replica_is_first_unless_it_is_overloaded() -> None:
    assert rank(preferred="a") == ["a", "b", "c"]
    assert rank(preferred="c") == ["b", "a", "c"]
    assert rank({"a": 6, "b": 2}, preferred="a") == ["b", "a"]


def test_replicas_that_failed_are_last() -> None:
    assert rank(tried={"b"}) == ["a", "c", "b"]
    assert rank(preferred="c", tried={"b"}) == ["a", "c", "b"]
    assert rank({"a": 3, "b": 0}, preferred="a", tried={"b"}) == ["a", "b"]
    assert rank(tried=LOADS) == ["b", "a", "c"]


def test_ties_are_broken_by_chance() -> None:
    firsts = {rank(dict.fromkeys("abc", 1))[0] for _ in range(200)}
    assert firsts == {"a", "b", "c"}
