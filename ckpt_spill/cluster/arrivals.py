"""Partitions that came from another worker's memory are in a file, too: evicting them need not write either.

A worker knows of what it has read itself; of what it was sent by a peer it knows just the key. What is behind that the
scheduler can say.
"""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from ckpt_spill.clean import CleanFile
from ckpt_spill.jobs import ReadJob, is_read, is_read_key
from ckpt_spill.store.partition import Identity
from ckpt_spill.store.store import Store

logger = logging.getLogger("ckpt_spill")


class Arrivals:
    """Asks for what arrives in a worker, if its memory has a use for that; all that comes at once, together.

    Parameters
    ----------
    worker : distributed.Worker
    store : callable
        Gives the store of an id, where this worker sees it.
    """

    def __init__(self, worker: Any, store: Callable[[str], Store | None]) -> None:
        self._worker, self._store = worker, store
        self._keys: list[Hashable] = []

    def arrived(self, key: Hashable) -> None:
        """Note the key of a value that a peer has sent."""
        if is_read_key(key) and hasattr(self._worker.data, "learn"):
            if not self._keys:
                self._worker.loop.add_callback(self._ask)
            self._keys.append(key)

    async def _ask(self) -> None:
        keys, self._keys = self._keys, []
        try:
            answer = await self._worker.scheduler.ckpt_spill_reads(keys=keys)
        except OSError as e:
            logger.info("worker %s cannot ask what was sent to it: %r", self._worker.address, e)
            return
        for key, job, partition, digest, holders in pickle.loads(answer):
            if file := self._file(job, partition, digest, holders):
                self._worker.data.learn(key, file)

    def _file(self, job: ReadJob, partition: int, digest: bytes, holders: Sequence[int]) -> CleanFile | None:
        seen = (store for holder in holders if (store := self._store(job.stores[holder].id)))
        if (store := next(seen, None)) is None:
            return None
        identity = Identity(job.run.checkpoint, job.run.generation, partition)
        path = store.partition_path(job.run, partition, digest)
        return CleanFile(store, path, identity, digest, job.columns)


def reads_behind(scheduler: Any, keys: Sequence[Hashable]) -> bytes:
    """Give, of some keys, those that read a partition, and what each reads: the job, the number, digest and holders.

    Returns
    -------
    bytes
        A pickle of a list of tuples: reads of one job share it.
    """
    tasks = (scheduler.tasks.get(key) for key in keys)
    return pickle.dumps([(ts.key, *ts.run_spec.args) for ts in tasks if ts and is_read(ts.run_spec)])
