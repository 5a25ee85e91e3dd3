"""The locality queue at work: which of the reads that wait goes to which worker, and when."""

from __future__ import annotations

import math
import time
from collections.abc import Hashable, Iterable
from typing import Any

from ckpt_spill.cluster.pace import Average, Pace, help_pays
from ckpt_spill.cluster.queue import LocalityQueue, Priority
from ckpt_spill.cluster.sight import Sight

_SILENCE = 10.0  # seconds
_UNKNOWN_DURATION = 0.5


class Dispatch:
    """Gives the free slots of workers to reads.

    A worker takes the read of the best priority among those whose files it sees. One that sees none of them helps with
    another's backlog, where that pays.

    Parameters
    ----------
    scheduler : distributed.Scheduler
    sight : Sight
    """

    def __init__(self, scheduler: Any, sight: Sight) -> None:
        self.queue = LocalityQueue()
        self._scheduler, self._sight = scheduler, sight
        self._paces: dict[str, Pace] = {}
        self._nbytes: dict[Hashable, int] = {}
        self._bandwidth = Average()
        self._silent: dict[str, float] = {}
        self._freed: dict[str, float] = {}
        self._kicked = False
        self._stimuli = 0

    def wait(self, key: Hashable, stores: tuple[str, ...], nbytes: int) -> None:
        """Let a task that is in ``no-worker`` wait for a worker that sees one of the stores.

        Parameters
        ----------
        key : hashable
        stores : tuple of str
        nbytes : int
            That a worker would have to fetch if it saw none of them.
        """
        for store in stores:
            if not self.queue.depth(store):
                self._paces[store] = Pace(time.monotonic())
        self.queue.add(key, self._scheduler.tasks[key].priority, stores)
        self._nbytes[key] = nbytes
        self.kick()

    def discard(self, key: Hashable) -> None:
        """Let a task wait no more."""
        self.queue.discard(key)
        self._nbytes.pop(key, None)

    def clear(self) -> None:
        """Forget all tasks."""
        self.queue.clear()
        self._nbytes.clear()
        self._paces.clear()

    def kick(self) -> None:
        """See, soon, whether there is a slot for anything that waits."""
        # Transitions may not be started inside a transition; and work that has become ready meanwhile goes first.
        if self.queue and not self._kicked:
            self._kicked = True
            self._scheduler.loop.add_callback(self._drain)

    def freed(self, worker: str | None) -> None:
        """Take note that a worker is done with a task, and see whether there is a read for it."""
        if self.queue:
            if worker is not None:
                self._freed[worker] = time.monotonic()
            self.kick()

    # ------------------------------------------------------------------------------------------------------ peers
    def measured(self, bandwidth: float) -> None:
        """Take the bandwidth of a fetch, in bytes per second."""
        self._bandwidth.add(bandwidth)

    def silence(self, worker: str) -> None:
        """Ask nothing of a worker for a while: it did not answer a peer."""
        self._silent[worker] = time.monotonic() + _SILENCE

    def heard(self, worker: str) -> None:
        """Forget what is known of a worker: that it was silent, or idle."""
        self._silent.pop(worker, None)
        self._freed.pop(worker, None)

    def peers(self, store: str) -> list[str]:
        """Give the workers that can serve a store's files, the least busy first; paused and retiring ones can."""
        now, workers = time.monotonic(), self._scheduler.workers
        serving = [w for w in self._sight.workers(store) if w in workers and self._silent.get(w, 0.0) <= now]
        return sorted(serving, key=lambda w: len(workers[w].processing))

    # ------------------------------------------------------------------------------------------------------ slots
    def _drain(self) -> None:
        """Give free slots to reads, one to each worker in turn."""
        self._kicked = False
        scheduler = self._scheduler
        # Where root tasks of other computations are queued, they have filled all slots.
        candidates: Iterable[Any] = scheduler.running if scheduler.queued else scheduler.idle_task_count
        workers = sorted(candidates, key=lambda ws: len(ws.processing) / ws.nthreads)
        while self.queue and sum(map(self._give, workers)):
            pass

    def _give(self, ws: Any) -> bool:
        """Let the best read for a worker go to it, if it has a slot for one."""
        stores = self._sight.stores(ws.address)
        best = self.queue.best(stores)
        if not self._has_slot(ws, best[0] if best else None):
            return False
        if best and not self._is_ahead(best[0], stores):
            key = best[1]
            for store in set(self.queue.stores_of(key)).intersection(stores):
                self._paces[store].taken(time.monotonic())
        elif (key := self._help(ws, held_back=best is not None)) is None:
            return False
        self._scheduler.tasks[key].worker_restrictions = {ws.address}
        self._stimuli += 1
        self._scheduler.transitions({key: "processing"}, f"ckpt-spill-let-go-{self._stimuli}-{time.time()}")
        return True

    def _has_slot(self, ws: Any, priority: Priority | None) -> bool:
        """Tell whether the scheduler would send a queued task to this worker.

        Other queued root tasks have taken every slot as it opened. A read that has priority over them, as it belongs to
        a computation that does, does not wait for them: those that a worker was sent already do not count.
        """
        scheduler = self._scheduler
        if ws not in scheduler.running:
            return False
        if math.isinf(scheduler.WORKER_SATURATION):
            return True
        busy = _busy(ws)
        if priority is not None and scheduler.queued and priority < scheduler.queued.peek().priority:
            busy -= sum(not ts.dependencies and ts.priority > priority for ts in ws.processing)
        return bool(busy < max(math.ceil(scheduler.WORKER_SATURATION * ws.nthreads), 1))

    def _is_ahead(self, priority: Priority, stores: Iterable[str]) -> bool:
        """Tell whether a read from some stores is to be left until those before it in other stores have been taken up.

        Partitions that are next to each other are often wanted together. A worker that runs ahead of those that have
        the others loads what nobody can use yet: in the scheduler's own queue none does. Here it may be as far ahead as
        there are threads, and does not wait for a store whose workers have stopped taking up reads.
        """
        scheduler, now = self._scheduler, time.monotonic()
        if math.isinf(scheduler.WORKER_SATURATION):
            return False
        others = [s for s in self.queue.stores() if s not in stores and self._paces[s].goes_on(now)]
        threads = sum(w.nthreads for w in scheduler.running)
        return bool(self.queue.before(priority, others, threads) >= threads)

    def _help(self, ws: Any, *, held_back: bool) -> Hashable | None:
        """Choose a read of another worker's backlog for an idle thread, where it pays to fetch the partition there.

        A worker that could read more of its own, but is held back as others come first, mostly waits for a moment. It
        helps them once it has been idle for as long as that takes: then it has waited at most twice as long as need be.
        """
        if _busy(ws) >= ws.nthreads:
            return None
        own = set(self._sight.stores(ws.address))
        idle = time.monotonic() - self._freed.get(ws.address, -math.inf)
        bandwidth = self._bandwidth.value or self._scheduler.bandwidth
        chosen, longest = None, 0.0
        for store in self.queue.stores():
            if store in own or not self.peers(store) or not (best := self.queue.best([store])):
                continue
            priority, key = best
            wait, work = self._backlog(store, key)
            fetch = self._nbytes[key] / bandwidth
            pays = wait > longest and help_pays(wait, fetch, work) and not (held_back and idle < fetch + work)
            if pays and not self._is_ahead(priority, {store, *own}):
                chosen, longest = key, wait
        return chosen

    def _backlog(self, store: str, key: Hashable) -> tuple[float, float]:
        """Estimate how long a store's workers take for what waits, and a thread of them for each, both in seconds."""
        threads = sum(self._scheduler.workers[w].nthreads for w in self.peers(store))
        pace, guess = self._paces[store], self._duration(key) / threads
        return pace.wait(self.queue.depth(store), time.monotonic(), guess), pace.interval(guess) * threads

    def _duration(self, key: Hashable) -> float:
        """Give the seconds that a read like this one takes, as far as known."""
        average = self._scheduler.tasks[key].prefix.duration_average
        return float(average) if average >= 0 else _UNKNOWN_DURATION


def _busy(ws: Any) -> int:
    """Count the tasks that a worker has been sent and that use its threads."""
    return len(ws.processing) - len(ws.long_running)
