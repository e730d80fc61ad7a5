"""The replica that each prefix of a prompt was last sent to."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Sequence

CAPACITY = 200_000


class PrefixMap:
    """Remembers the most recently used prefixes, up to `capacity`."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._capacity = capacity
        self._replicas: OrderedDict[bytes, str] = OrderedDict()

    def find(self, prefixes: Sequence[bytes], replicas: Collection[str]) -> str | None:
        """Return the one of `replicas` that the longest known prefix was sent to.

        `prefixes`: hashes of the same prompt, the shortest prefix first.
        """
        for prefix in reversed(prefixes):
            replica = self._replicas.get(prefix)
            if replica in replicas:
                return replica
        return None

    def add(self, prefixes: Sequence[bytes], replica: str) -> None:
        """Note that a prompt with these prefixes is sent to a replica."""
        for prefix in prefixes:
            self._replicas[prefix] = replica
            self._replicas.move_to_end(prefix)
        while len(self._replicas) > self._capacity:
            self._replicas.popitem(last=False)
