"""The client's side of making copies: what each partition lacks is placed, and fetched by the workers that get it."""

from __future__ import annotations

import logging
import threading
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple, Self

from ckpt_spill import copying
from ckpt_spill.copying import Copy, Holder, Outcome
from ckpt_spill.errands import GoneError
from ckpt_spill.errors import WriteError
from ckpt_spill.hosts import HostLostError, Hosts
from ckpt_spill.jobs import Record, StoreRef
from ckpt_spill.placement import Placement, domains, require_domains
from ckpt_spill.reach import LOST, describe, patiently, ranges, several
from ckpt_spill.store.runs import Run

_BATCH = 256 << 20  # bytes that are asked for at once, which is what may have to be fetched again
_THREADS = 32
_ATTEMPTS = 4

logger = logging.getLogger("ckpt_spill")


class Known(NamedTuple):
    """A store in reach: where, its failure domain, and the workers that see it."""

    ref: StoreRef
    domain: str
    peers: tuple[str, ...]


class Replication:
    """Copies of the partitions of one run, made while more of them come.

    One batch at a time is on its way to each store. To be used as a context manager: leaving waits for the batches that
    are on their way, and begins no more.

    Parameters
    ----------
    hosts : Hosts
    run : Run
    replicas : int
        In how many domains each partition has to be.
    npartitions : int
        How many partitions there are to be.
    records : iterable of Record
        What is on disk already; the copies of that are begun with.
    roots : tuple of str or None
    named : sequence of StoreRef
        As ``copying.sites`` wants them.
    durable : bool
        Whether copies have to survive a power cut.

    Raises
    ------
    RefusedError
        There are too few domains.
    """

    def __init__(
        self,
        hosts: Hosts,
        run: Run,
        replicas: int,
        npartitions: int,
        records: Iterable[Record],
        *,
        roots: tuple[str, ...] | None = None,
        named: Sequence[StoreRef] = (),
        durable: bool = True,
    ) -> None:
        self._hosts, self._run, self._replicas, self._npartitions = hosts, run, replicas, npartitions
        self._roots, self._named, self._durable = roots, list(named), durable
        self._lock = threading.Lock()  # of what follows; nobody is asked anything while it is held
        self._records: defaultdict[int, list[Record]] = defaultdict(list)  # by partition, of copies sound or not
        self._coming: defaultdict[int, set[str]] = defaultdict(set)  # stores that are to have a partition
        self._queues: defaultdict[str, deque[int]] = defaultdict(deque)  # what is not yet on its way to a store
        self._served: set[str] = set()  # stores that have a thread
        self._seen: set[tuple[str, str]] = set()  # stores and domains, ever
        self._known: dict[str, Known] = {}  # stores in reach
        self._given_up: set[str] = set()  # stores that did not come back
        self._unfit: dict[str, str] = {}  # stores that refused a copy, and why
        self._unsound: set[tuple[bytes, str]] = set()  # copies that do not count, by digest and store
        self._attempts: Counter[int] = Counter()  # at copies of a partition
        self._reasons: dict[int, str] = {}  # why a partition was not copied, the last time
        self._placement = Placement()
        self._look()
        require_domains({known.domain for known in self._known.values()}, replicas)
        self._threads = ThreadPoolExecutor(_THREADS, "replication")
        self._working: list[Future[None]] = []
        with self._lock:
            for record in records:
                self._records[record.partition].append(record)
                self._placement.add(record.store, record.stored_nbytes)
            for partition in self._records:
                self._plan(partition, self._still_to_come())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._queues.clear()
        self._threads.shutdown()

    def add(self, record: Record) -> None:
        """Take the record of a partition that was written, and begin to make its copies."""
        self._check(wait=False)
        if record.store not in self._known and record.store not in self._given_up:
            self._look()
        with self._lock:
            self._records[record.partition].append(record)
            self._placement.take(record.store, record.stored_nbytes)
            self._plan(record.partition, self._still_to_come())

    def finish(self) -> list[Record]:
        """Wait until every partition has all its copies.

        Returns
        -------
        list of Record
            Of all copies that count. A partition of which there is none any more has to be made again, and added.

        Raises
        ------
        WriteError
            Some have too few and no store can take more.
        """
        while True:
            self._check(wait=True)
            name = f"checkpoint {self._run.checkpoint!r}"
            patiently(self._hosts, self._look, lambda _: list(self._awaited().values()), name)
            with self._lock:
                if lost := self._awaited():
                    again = sum(not self._copies(n) for n in self._records)
                    logger.warning(LOST, self._run.checkpoint, several(lost.values()), again)
                    self._given_up |= lost.keys()
                lacking = [n for n in self._records if self._plan(n, 0)]
                if not lacking:
                    self._attempts.clear()
                    return [r for n in self._records for r in self._copies(n).values()]
                if not any(self._coming[n] for n in lacking):
                    raise self._error(lacking)

    # ------------------------------------------------------------------------------------------------- what there is
    def _look(self) -> None:
        """Ask all workers which stores they see. A store that one domain shares with others stays shared."""
        found: defaultdict[str, list[tuple[str, copying.Site]]] = defaultdict(list)
        for address, sites in self._hosts.each(copying.sites, self._roots, self._named).items():
            for site in sites or ():
                found[site.ref.id].append((address, site))
        with self._lock:
            self._seen |= {(store, site.domain) for store, seen in found.items() for _, site in seen}
            domain_of = domains(self._seen)
            self._known = {
                store: Known(seen[0][1].ref, domain_of[store], tuple(address for address, _ in seen))
                for store, seen in found.items()
            }
            self._given_up -= self._known.keys()
            self._placement.update(
                {store: known.domain for store, known in self._known.items()},
                {store: seen[0][1].free for store, seen in found.items()},
            )

    def _copies(self, partition: int) -> dict[str, Record]:
        """Give the copies of a partition that count, by store: of several attempts at it, that with the most."""
        attempts: dict[bytes, dict[str, Record]] = {}
        for r in self._records[partition]:
            if r.store in self._known and (r.digest, r.store) not in self._unsound:
                attempts.setdefault(r.digest, {}).setdefault(r.store, r)
        return max(attempts.values(), key=len, default={})

    def _awaited(self) -> dict[str, str]:
        """Name the stores out of reach that hold something, and may come back, by their ids."""
        holding = {r.store: StoreRef(r.store, r.root, r.host) for of in self._records.values() for r in of}
        return {s: describe(ref) for s, ref in holding.items() if s not in self._known and s not in self._given_up}

    # ------------------------------------------------------------------------------------------------------ planning
    def _plan(self, partition: int, reserve: int) -> bool:
        """Choose stores for the copies that a partition lacks; tell whether it does, on its way or not.

        Each store keeps room for so many partitions besides: copies can wait for those.
        """
        copies = self._copies(partition)
        if not copies:
            return False
        coming = self._coming[partition]
        used = {self._known[store].domain for store in (*copies, *(coming & self._known.keys()))}
        lacking, size = self._replicas - len(used), next(iter(copies.values())).stored_nbytes
        if lacking > 0 and self._attempts[partition] < _ATTEMPTS:
            unfit = {*copies, *coming, *self._unfit}
            chosen = self._placement.choose(used, size, lacking, without=unfit, reserve=reserve * size)
            self._attempts[partition] += bool(chosen)
            for store in chosen:
                self._placement.take(store, size)
                coming.add(store)
                self._queues[store].append(partition)
                if store not in self._served:
                    self._served.add(store)
                    self._working.append(self._threads.submit(self._serve, store))
        return lacking > 0 or bool(coming)

    def _still_to_come(self) -> int:
        """Guess how many partitions each store still gets from tasks."""
        return (self._npartitions - len(self._records)) // max(len(self._known), 1)

    def _error(self, lacking: Sequence[int]) -> WriteError:
        found = sorted({known.domain for known in self._known.values()})
        reasons = dict.fromkeys([*self._unfit.values(), *(self._reasons[n] for n in lacking if n in self._reasons)])
        return WriteError(
            f"partitions {ranges(sorted(lacking))} of checkpoint {self._run.checkpoint!r} cannot have {self._replicas} "
            f"copies: no store in another failure domain takes one. Domains in reach: {', '.join(found)}"
            + (f"; {several(reasons)}" if reasons else "")
            + ". Make room or start workers on more hosts, and call again: what is on disk is taken over",
            partitions=sorted(lacking),
        )

    # ------------------------------------------------------------------------------------------ fetching, in threads
    def _check(self, *, wait: bool) -> None:
        """Raise what a thread has raised, one that is done, or any after waiting for it."""
        for future in [f for f in self._working if wait or f.done()]:
            self._working.remove(future)
            future.result()

    def _serve(self, store: str) -> None:
        """Have a store fetch what was planned for it, until there is no more."""
        while batch := self._next(store):
            known, copies = batch
            call = known.peers[0], (known.ref, self._run, copies, self._durable)
            try:
                [outcomes] = self._hosts.at(copying.fetch, [call])
            except GoneError as e:
                self._missed(store, copies, e)
            else:
                self._took(store, copies, outcomes)

    def _next(self, store: str) -> tuple[Known, list[Copy]] | None:
        """Give the next batch for a store; None, and no more is served, when there is none."""
        with self._lock:
            queue, known = self._queues[store], self._known.get(store)
            copies, nbytes = list[Copy](), 0
            while queue and nbytes < _BATCH:
                partition = queue.popleft()
                if known and (found := self._copies(partition)):
                    holders = tuple(Holder(self._known[s].ref, self._known[s].peers) for s in found)
                    one = next(iter(found.values()))
                    copies.append(Copy(partition, one.digest, one.stored_nbytes, holders))
                    nbytes += one.stored_nbytes
                else:
                    self._drop(store, partition)
            if known and copies:
                return known, copies
            self._served.discard(store)
            return None

    def _took(self, store: str, copies: Sequence[Copy], outcomes: Sequence[Outcome]) -> None:
        with self._lock:
            for copy, outcome in zip(copies, outcomes, strict=True):
                self._unsound.update((copy.digest, holder) for holder in (*outcome.missing, *outcome.damaged))
                if outcome.record:
                    self._coming[copy.partition].discard(store)
                    self._records[copy.partition].append(outcome.record)
                    self._unsound.discard((copy.digest, store))  # a damaged copy was replaced
                    continue
                self._drop(store, copy.partition)
                self._reasons[copy.partition] = outcome.reason()
                logger.warning("partition %d was not copied to store %s: %s", copy.partition, store, outcome.reason())
                if outcome.refused:
                    self._unfit[store] = outcome.refused
                for peer in outcome.silent:
                    self._lose(peer)

    def _missed(self, store: str, copies: Sequence[Copy], error: GoneError) -> None:
        """Ask another worker that sees the store; when there is none it is out of reach."""
        with self._lock:
            if isinstance(error, HostLostError):
                self._lose(error.details["address"])
            else:
                self._known.pop(store, None)
            if store in self._known:
                self._queues[store].extendleft(copy.partition for copy in reversed(copies))
                return
            logger.warning("no more copies go to store %s: %s", store, error)
            for copy in copies:
                self._drop(store, copy.partition)

    def _lose(self, peer: str) -> None:
        """Ask a worker nothing more until all are looked for again; stores that no other sees are out of reach."""
        left = {s: known._replace(peers=tuple(p for p in known.peers if p != peer)) for s, known in self._known.items()}
        self._known = {store: known for store, known in left.items() if known.peers}

    def _drop(self, store: str, partition: int) -> None:
        """Expect a copy no longer."""
        self._coming[partition].discard(store)
        self._placement.take(store, -self._records[partition][0].stored_nbytes)
