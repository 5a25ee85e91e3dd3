"""Reads that wait for a worker: one heap for each store, so that a worker's next read is found in a few steps."""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterable, Iterator
from heapq import heappop, heappush
from typing import Any, NamedTuple

Priority = tuple[Any, ...]


class _Entry(NamedTuple):
    """In the heaps of all its stores; ``serial`` tells it from an earlier one of the same key."""

    priority: Priority
    serial: int
    key: Hashable


class LocalityQueue:
    """Keys with a priority and the stores that hold what they read.

    An entry that was taken through one of its stores' heaps is left in the others until it comes to their top.
    """

    def __init__(self) -> None:
        self._waiting: dict[Hashable, tuple[_Entry, tuple[str, ...]]] = {}
        self._heaps: dict[str, list[_Entry]] = {}
        self._depths: dict[str, int] = {}
        self._serial = itertools.count()

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._waiting

    def __iter__(self) -> Iterator[Hashable]:
        return iter(self._waiting)

    def add(self, key: Hashable, priority: Priority, stores: tuple[str, ...]) -> None:
        """Let a key wait; one that waits already gets the new priority and stores."""
        self.discard(key)
        entry = _Entry(priority, next(self._serial), key)
        self._waiting[key] = entry, stores
        for store in stores:
            heappush(self._heaps.setdefault(store, []), entry)
            self._depths[store] = self._depths.get(store, 0) + 1

    def discard(self, key: Hashable) -> None:
        """Let a key wait no more, if it does."""
        if (waiting := self._waiting.pop(key, None)) is None:
            return
        for store in waiting[1]:
            self._depths[store] -= 1
            if not self._depths[store]:
                del self._depths[store], self._heaps[store]

    def best(self, stores: Iterable[str]) -> tuple[Priority, Hashable] | None:
        """Give the key of the best (smallest) priority among those that some of the stores hold, and leave it there."""
        tops = [entry for store in stores if (entry := self._top(store))]
        if not tops:
            return None
        entry = min(tops)
        return entry.priority, entry.key

    def before(self, priority: Priority, stores: Iterable[str], limit: int) -> int:
        """Count the keys of better priority that some stores hold, up to a limit."""
        found = 0
        for store in stores:
            heap = self._heaps.get(store, [])
            places = [0]
            while places and found < limit:
                place = places.pop()
                if place < len(heap) and heap[place].priority < priority:  # or else nothing below it is better either
                    found += self._is_current(heap[place])
                    places += (2 * place + 1, 2 * place + 2)
        return found

    def depth(self, store: str) -> int:
        """Count the keys that a store holds."""
        return self._depths.get(store, 0)

    def stores(self) -> list[str]:
        """Give the stores that hold anything that is waited for."""
        return list(self._depths)

    def stores_of(self, key: Hashable) -> tuple[str, ...]:
        """Give the stores of a key that waits."""
        return self._waiting[key][1]

    def keys_of(self, store: str) -> list[Hashable]:
        """Give all keys that a store holds, in no order."""
        return [entry.key for entry in self._heaps.get(store, []) if self._is_current(entry)]

    def clear(self) -> None:
        """Forget everything."""
        self._waiting.clear()
        self._heaps.clear()
        self._depths.clear()

    def _top(self, store: str) -> _Entry | None:
        heap = self._heaps.get(store)
        while heap:
            if self._is_current(heap[0]):
                return heap[0]
            heappop(heap)
        return None

    def _is_current(self, entry: _Entry) -> bool:
        waiting = self._waiting.get(entry.key)
        return waiting is not None and waiting[0] is entry
