"""Partitions that a worker has not read itself are in a file, too: evicting them need not write either.

Of what it was sent by a peer it knows just the key; what is behind that the scheduler can say. And dask gives what is
in the memory of the cluster to new tasks under new keys, by aliases: each persisted frame, whenever it is used.
"""

from __future__ import annotations

import asyncio
import logging
import pickle
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

from ckpt_spill.clean import CleanFile
from ckpt_spill.jobs import ReadJob, is_read, is_read_key, target_of_alias
from ckpt_spill.store.partition import Identity
from ckpt_spill.store.store import Store

logger = logging.getLogger("ckpt_spill")


_MADE_HERE = {"executing", "long-running", "memory"}
"""States of a task before it is in memory, where its value was not sent by a peer or a client."""

_PATIENCE = 20.0  # seconds


class Arrivals:
    """Asks what it is that comes to a worker, if its memory has a use for that; for all that comes at once, together.

    It asks when a value is on its way, so that the answer is there with it. Until then the memory evicts others first:
    what is evicted before is written.

    Parameters
    ----------
    worker : distributed.Worker
    store : callable
        Gives the store of an id, where this worker sees it.
    """

    def __init__(self, worker: Any, store: Callable[[str], Store | None]) -> None:
        self._worker, self._store = worker, store
        self._keys: list[Hashable] = []
        self._coming: dict[Hashable, CleanFile | None] = {}

    def follow(self, key: Hashable, start: str, finish: str) -> None:
        """Follow a task of the worker from one state to the next."""
        if not is_read_key(key) or not hasattr(self._worker.data, "learn"):
            return
        if finish == "flight":
            self._coming[key] = None
            self._ask_soon(key)
        elif finish != "memory":
            self._coming.pop(key, None)
        elif key in self._coming:
            if file := self._coming.pop(key):
                self._worker.data.learn(key, file)
        elif start not in _MADE_HERE:
            self._ask_soon(key)
        else:
            target = target_of_alias(self._worker.state.tasks[key].run_spec)
            if target is not None and not self._worker.data.learn_alias(key, target):
                self._ask_soon(key)

    def _ask_soon(self, key: Hashable) -> None:
        if not self._keys:
            self._worker.loop.add_callback(self._ask)
        self._keys.append(key)
        self._worker.data.tier.awaited.add(key)

    async def _ask(self) -> None:
        keys, self._keys = self._keys, []
        asking = asyncio.ensure_future(self._worker.scheduler.ckpt_spill_reads(keys=keys))
        await asyncio.wait([asking], timeout=_PATIENCE)  # later ones count, too; but memory is not kept for them
        self._worker.data.tier.awaited.difference_update(keys)
        try:
            answer = await asking
        except OSError as e:
            logger.info("worker %s cannot ask what was sent to it: %r", self._worker.address, e)
            return
        for key, job, partition, digest, holders in pickle.loads(answer):
            if file := self._file(job, partition, digest, holders):
                if key in self._coming:
                    self._coming[key] = file
                else:
                    self._worker.data.learn(key, file)

    def _file(self, job: ReadJob, partition: int, digest: bytes, holders: Sequence[int]) -> CleanFile | None:
        seen = (store for holder in holders if (store := self._store(job.stores[holder].id)))
        if (store := next(seen, None)) is None:
            return None
        identity = Identity(job.run.checkpoint, job.run.generation, partition)
        path = store.partition_path(job.run, partition, digest)
        return CleanFile(store, path, identity, digest, job.columns, job.backend)


def reads_behind(scheduler: Any, keys: Sequence[Hashable]) -> bytes:
    """Give, of some keys, those that read a partition, and what each reads: the job, the number, digest and holders.

    Returns
    -------
    bytes
        A pickle of a list of tuples: reads of one job share it.
    """
    specs = ((key, _behind_aliases(scheduler.tasks, key)) for key in keys)
    return pickle.dumps([(key, *spec.args) for key, spec in specs if is_read(spec)])


def _behind_aliases(tasks: Mapping[Hashable, Any], key: Hashable) -> Any:
    spec = None
    while (ts := tasks.get(key)) and (key := target_of_alias(spec := ts.run_spec)) is not None:
        pass
    return spec
