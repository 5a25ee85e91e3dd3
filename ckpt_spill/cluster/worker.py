"""The worker's side: it announces the stores that it sees, and serves their files to peers.

The scheduler's plugin gives it to all workers. As a preload of ``dask worker`` it is there from the start, too:
``--preload ckpt_spill.cluster.worker``.

What is used of distributed beyond its documented interface: ``handlers``, ``rpc`` and ``scheduler`` of a worker, by
which one process asks another.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from distributed import WorkerPlugin

from ckpt_spill.cluster.arrivals import Arrivals
from ckpt_spill.cluster.remote import UNSEEN, FileId, RemoteFile, read_range
from ckpt_spill.cluster.sight import NAME, Seen
from ckpt_spill.config import Settings, domain
from ckpt_spill.errors import CkptSpillError
from ckpt_spill.store.store import Store

_SERVED_AT_ONCE = 4
_PATIENCE = 20.0

logger = logging.getLogger("ckpt_spill")


class Sources(NamedTuple):
    """The scheduler's answer to who can serve a partition.

    Attributes
    ----------
    peers : list of (str, str)
        Addresses, and the store that each sees.
    waits : bool
        Whether the task, when it is rescheduled, waits in the scheduler for a worker that sees one of the stores.
    """

    peers: list[tuple[str, str]]
    waits: bool


class Sharing(WorkerPlugin):
    """Tells the scheduler which stores this worker sees, and gives their files to peers.

    Attributes
    ----------
    counts : Counter
        Reads of this worker: ``local`` and ``fetched``; ``fetched_bytes``; ranges ``served`` to peers.
    steered : bool
        Whether the scheduler has its plugin, as far as is known.
    """

    name = NAME
    idempotent = True

    async def setup(self, worker: Any) -> None:
        """Take up work in a worker."""
        self._worker = worker
        self._stores: dict[str, Store] = {}
        self._roots: set[str] = set()
        self._serving = asyncio.Semaphore(_SERVED_AT_ONCE)
        self._bandwidth: float | None = None
        self._arrivals = Arrivals(worker, self._find)
        self.steered = True
        self.counts: Counter[str] = Counter()
        worker.handlers["ckpt_spill_look"] = self.look
        worker.handlers["ckpt_spill_read"] = self._read
        await self.announce()

    def teardown(self, worker: Any) -> None:
        """Leave no handler behind."""
        worker.handlers.pop("ckpt_spill_look", None)
        worker.handlers.pop("ckpt_spill_read", None)

    # ------------------------------------------------------------------------------------------------ announcing
    async def announce(self) -> None:
        """Look for stores and tell the scheduler; where manifests have named more roots, look there too.

        A scheduler that has no plugin is told nothing more: when it gets one, each worker gets this one anew.
        """
        stores = await self.look(())
        try:
            while self.steered and not self._roots.issuperset(roots := await self._tell(stores)):
                stores = await self.look(roots)
        except OSError as e:
            logger.warning("worker %s cannot tell the scheduler which stores it sees: %r", self._worker.address, e)

    async def _tell(self, stores: Mapping[str, Seen]) -> list[str]:
        told = {store: list(seen) for store, seen in stores.items()}
        roots = await self._worker.scheduler.ckpt_spill_announce(worker=self._worker.address, stores=told)
        self.steered = roots is not None
        return list(roots or ())

    async def look(self, roots: Iterable[str]) -> dict[str, Seen]:
        """Look for stores in the configured roots, in these, and in all that were asked for before."""
        self._roots.update(roots)
        self._stores = await asyncio.to_thread(_stores_in, self._configured(), self._roots)
        here = socket.gethostname(), domain()
        return {store.id: Seen(store.root, *here) for store in self._stores.values()}

    def _configured(self) -> Sequence[str]:
        try:
            return Settings.here(None).roots
        except CkptSpillError as e:  # which a call that needs a root raises in its turn
            logger.warning("%s", e)
            return ()

    def _find(self, store: str) -> Store | None:
        return self._stores.get(store)

    @property
    def roots(self) -> frozenset[str]:
        """Where stores were found, or may be, besides the configured roots."""
        return frozenset(self._roots)

    def transition(self, key: Hashable, start: str, finish: str, *args: Any, **kwargs: Any) -> None:
        """Watch for partitions that come from the memory of another worker."""
        if self.steered:
            self._arrivals.follow(key, start, finish)

    # --------------------------------------------------------------------------------------------------- serving
    async def _read(self, file: Sequence[Any], offset: int, length: int) -> dict[str, Any]:
        """Give a range of a partition file to a peer; a few at a time, so that little memory is taken."""
        wanted = FileId.unpack(*file)
        if (store := self._stores.get(wanted.store)) is None:
            return UNSEEN
        async with self._serving:
            self.counts["served"] += 1
            return await asyncio.to_thread(read_range, store, wanted, offset=offset, length=length)

    # -------------------------------------------------------------------------------- fetching, in a task's thread
    def open(self, peer: str, file: FileId) -> RemoteFile:
        """Open a partition file that a peer sees."""
        return RemoteFile(self._worker, peer, file)

    def count(self, source: str | RemoteFile) -> None:
        """Count a read, and note how fast the bytes came."""
        if isinstance(source, str):
            self.counts["local"] += 1
        else:
            self.counts["fetched"] += 1
            self.counts["fetched_bytes"] += source.fetched
            self._bandwidth = source.fetched / max(source.seconds, 1e-6)

    def sources(
        self, key: Hashable, partition: int, stores: Sequence[str], *, failed: Mapping[str, str], silent: Sequence[str]
    ) -> Sources:
        """Ask the scheduler who can serve a partition; tell it first what this worker sees now.

        See Also
        --------
        ckpt_spill.cluster.scheduler.Steering.sources : What the parameters and the results mean.

        Raises
        ------
        OSError, TimeoutError
            The scheduler does not answer.
        """
        facts = {"stores": list(stores), "failed": dict(failed), "silent": list(silent), "bandwidth": self._bandwidth}

        async def ask() -> dict[str, Any]:
            await self.announce()
            if not self.steered:
                return {"peers": [], "waits": False}
            asking = self._worker.scheduler.ckpt_spill_sources
            return dict(await asking(worker=self._worker.address, key=key, partition=partition, **facts))

        answer = asyncio.run_coroutine_threadsafe(ask(), self._worker.loop.asyncio_loop).result(_PATIENCE)
        return Sources([(peer, store) for peer, store in answer["peers"]], waits=answer["waits"])


def sharing(worker: Any) -> Sharing | None:
    """Give a worker's plugin, if it has it."""
    found = worker.plugins.get(NAME) if worker else None
    return found if isinstance(found, Sharing) else None


def _stores_in(configured: Iterable[str], named: Iterable[str]) -> dict[str, Store]:
    found: dict[str, Store] = {}
    for root in dict.fromkeys((*configured, *sorted(named))):
        if store := Store.open(root):
            found.setdefault(store.id, store)
    return found


async def dask_setup(worker: Any) -> None:
    """Preload."""
    await worker.plugin_add(Sharing())
