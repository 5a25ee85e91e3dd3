"""Which worker sees which store, as the workers say."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

NAME = "ckpt-spill"
"""Of the plugins, in the scheduler and in each worker."""


class Seen(NamedTuple):
    """A store as one worker sees it: its root there, the worker's host, and the failure domain it is in."""

    root: str
    host: str
    domain: str


class Sight:
    """The map between workers and stores, both ways. Workers are addresses; stores are ids, which outlive them."""

    def __init__(self) -> None:
        self._stores: dict[str, dict[str, Seen]] = {}
        self._workers: dict[str, set[str]] = {}

    def update(self, worker: str, stores: Mapping[str, Seen]) -> None:
        """Replace what a worker sees."""
        self.remove(worker)
        self._stores[worker] = dict(stores)
        for store in stores:
            self._workers.setdefault(store, set()).add(worker)

    def remove(self, worker: str) -> None:
        """Forget a worker."""
        for store in self._stores.pop(worker, ()):
            self._workers[store].discard(worker)
            if not self._workers[store]:
                del self._workers[store]

    def stores(self, worker: str) -> Iterable[str]:
        """Give the stores that a worker sees."""
        return self._stores.get(worker, {})

    def workers(self, store: str) -> Iterable[str]:
        """Give the workers that see a store."""
        return self._workers.get(store, ())

    def all_see(self, workers: Iterable[str], stores: Iterable[str]) -> bool:
        """Tell whether each of the workers sees one of the stores at least."""
        wanted = set(stores)
        return all(not wanted.isdisjoint(self._stores.get(w, ())) for w in workers)
