"""A bounded queue with an equal share for each client."""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Generic, TypeVar

T = TypeVar("T")


class FairQueue(Generic[T]):
    """Serves clients round robin, and the items of one client in their order."""

    def __init__(self, max_items: int) -> None:
        self._max_items = max_items
        self._items: OrderedDict[str, deque[T]] = OrderedDict()
        """By client; the next one to be served comes first."""

    def __len__(self) -> int:
        return sum(len(items) for items in self._items.values())

    def add(self, client: str, item: T) -> T | None:
        """Append an item. Returns the one that loses its place because the queue is full.

        That is the last item of the client with the most: no client can fill the queue for others.
        """
        self._items.setdefault(client, deque()).append(item)
        if len(self) <= self._max_items:
            return None
        longest = max(self._items, key=lambda name: len(self._items[name]))
        dropped = self._items[longest].pop()
        self._forget_empty(longest)
        return dropped

    def pop(self) -> T:
        """Remove and return the first item of the next client, whose turn then comes last.

        Raises IndexError if the queue is empty.
        """
        if not self._items:
            raise IndexError("pop from an empty queue")
        client, items = next(iter(self._items.items()))
        item = items.popleft()
        self._items.move_to_end(client)
        self._forget_empty(client)
        return item

    def remove(self, client: str, item: T) -> None:
        """Remove an item of a client. Raises ValueError if it is not in the queue."""
        items = self._items.get(client, deque())
        items.remove(item)
        self._forget_empty(client)

    def _forget_empty(self, client: str) -> None:
        if not self._items[client]:
            del self._items[client]
