"""Piggy-backed news, each told a bounded number of times.

Source: A. Das, I. Gupta, A. Motivala, "SWIM", DSN 2002: news told lambda x log n times reaches
everybody with high probability; those told least go first.
"""

from typing import Generic, TypeVar

RETELL_FACTOR = 3
"""Lambda: how often an item is told, per doubling of the group."""


KeyT = TypeVar("KeyT", str, tuple[str, str])
ItemT = TypeVar("ItemT")


class TransmitQueue(Generic[KeyT, ItemT]):
    """News to tell; newer news under the same key replaces older."""

    def __init__(self) -> None:
        self._items: dict[KeyT, tuple[int, ItemT]] = {}

    def __len__(self) -> int:
        return len(self._items)

    def put(self, key: KeyT, item: ItemT) -> None:
        """Queue an item; what was queued under its key is forgotten."""
        self._items[key] = (0, item)

    def drop(self, key: KeyT) -> None:
        """Tell what is queued under a key no more."""
        self._items.pop(key, None)

    def take(self, count: int, group: int) -> tuple[ItemT, ...]:
        """Return up to ``count`` items for one message to a member of a group of ``group``.

        Least told first, then by key, so that the order depends on nothing else.
        """
        limit = RETELL_FACTOR * max(1, group.bit_length())
        order = sorted(self._items, key=lambda key: (self._items[key][0], key))[:count]
        taken: list[ItemT] = []
        for key in order:
            told, item = self._items[key]
            taken.append(item)
            if told + 1 >= limit:
                del self._items[key]
            else:
                self._items[key] = (told + 1, item)
        return tuple(taken)
