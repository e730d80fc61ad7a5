"""The replica of a prefix."""

from __future__ import annotations

from tokenloom_ray.prefix_map import PrefixMap

A, B, C, D = b"a", b"b", b"c", b"d"


def test_the_longest_known_prefix_decides() -> None:
    prefixes = PrefixMap()
    prefixes.add([A, B], "first")
    prefixes.add([A, C], "second")
    assert prefixes.find([A, B, D], {"first", "second"}) == "first"
    assert prefixes.find([A, C], {"first", "second"}) == "second"
    assert prefixes.find([A, D], {"first", "second"}) == "second"
    assert prefixes.find([D], {"first", "second"}) is None
    assert prefixes.find([], {"first"}) is None


def test_a_replica_that_is_gone_leaves_it_to_shorter_prefixes() -> None:
    prefixes = PrefixMap()
    prefixes.add([A], "second")
    prefixes.add([B], "first")
    assert prefixes.find([A, B], {"second"}) == "second"
    assert prefixes.find([B], {"second"}) is None


def test_the_least_recently_used_prefixes_are_forgotten() -> None:
    prefixes = PrefixMap(capacity=2)
    prefixes.add([A, B], "first")
    prefixes.add([A], "first")
    prefixes.add([C], "first")
    assert prefixes.find([B], {"first"}) is None
    assert prefixes.find([A], {"first"}) == prefixes.find([C], {"first"}) == "first"
