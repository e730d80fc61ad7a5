from __future__ import annotations

import pytest

from tokenloom_engine.constraints.trials.fair_queue import FairQueue


def _drained(queue: FairQueue[str]) -> list[str]:
    return [queue.pop() for _ in range(len(queue))]


def test_clients_take_turns_and_keep_their_order() -> None:
    queue = FairQueue[str](9)
    for item in ("a1", "a2", "a3", "b1", "c1", "b2"):
        assert queue.add(item[0], item) is None
    assert [queue.pop(), queue.pop()] == ["a1", "b1"]
    queue.add("d", "d1")
    assert _drained(queue) == ["c1", "a2", "b2", "d1", "a3"]
    assert not queue
    with pytest.raises(IndexError):
        queue.pop()


def test_the_client_with_the_most_makes_room() -> None:
    queue = FairQueue[str](4)
    for item in ("a1", "a2", "a3", "a4"):
        queue.add("a", item)
    assert queue.add("b", "b1") == "a4"
    assert queue.add("a", "a5") == "a5"
    assert queue.add("b", "b2") == "a3"
    assert len(queue) == 4
    assert _drained(queue) == ["a1", "b1", "a2", "b2"]


def test_an_item_can_be_removed() -> None:
    queue = FairQueue[str](9)
    for item in ("a1", "a2", "b1"):
        queue.add(item[0], item)
    queue.remove("a", "a1")
    queue.remove("b", "b1")
    for client in ("a", "b"):
        with pytest.raises(ValueError):
            queue.remove(client, "b1")
    assert _drained(queue) == ["a2"]
