"""The scheduler's side: which worker sees which store, and the locality queue.

A read of a partition that not every worker can see is held: restricted to an address that no worker has, which lets it
settle in the state ``no-worker``. When a worker that sees the file has a free slot by the scheduler's own rule for
queued tasks, the read is restricted to it and let go. So reads are where their files are, downstream work goes first,
and no more partitions are loaded than the scheduler's queue would load. Where every worker sees the file nothing is
held: the read is a queued root task like any other.

As a preload of ``dask scheduler``: ``--preload ckpt_spill.cluster.scheduler``.

What is used of distributed beyond its documented interface: ``Scheduler.transition`` and ``transitions``, ``handlers``,
``unrunnable``, ``queued``, ``idle_task_count``, ``running``, ``no_workers_timeout``, ``WORKER_SATURATION``, and of a
task ``worker_restrictions`` and ``run_spec``. Plugins get no other means to decide where a task runs.
"""

from __future__ import annotations

import asyncio
import logging
import math
import pickle
import time
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, NamedTuple

from distributed import SchedulerPlugin
from tornado.ioloop import PeriodicCallback

from ckpt_spill.cluster.losses import lost_partitions
from ckpt_spill.cluster.pace import Average, Pace, help_pays
from ckpt_spill.cluster.queue import LocalityQueue, Priority
from ckpt_spill.cluster.sight import Seen, Sight
from ckpt_spill.config import patience
from ckpt_spill.jobs import ReadJob

NAME = "ckpt-spill"
HELD = frozenset({"ckpt-spill://held-for-a-worker-that-has-the-file"})
"""Restriction to an address that no worker has."""

_TICK = 0.5  # seconds
_LOOK_AGAIN = 1.0
_SILENCE = 10.0
_ANSWER = 5.0
_UNKNOWN_DURATION = 0.5

logger = logging.getLogger("ckpt_spill")


class Read(NamedTuple):
    """A read that is held here until it is let go. Reads of one job that have the same holders share the last two."""

    partition: int
    job: ReadJob
    stores: tuple[str, ...]


class Steering(SchedulerPlugin):
    """Sees to it that partitions are read where they lie."""

    name = NAME
    idempotent = True

    async def start(self, scheduler: Any) -> None:
        """Take up work in a scheduler that may have workers already."""
        self._scheduler = scheduler
        self._sight = Sight()
        self._queue = LocalityQueue()
        self._reads: dict[Hashable, Read] = {}
        self._failures: defaultdict[Hashable, dict[str, str]] = defaultdict(dict)
        self._paces: dict[str, Pace] = {}
        self._bandwidth = Average()
        self._silent: dict[str, float] = {}
        self._lost_since: dict[str, float] = {}
        self._looked: dict[str, float] = {}
        self._roots: set[str] = set()
        self._refreshed = 0.0
        self._kicked = False
        self._stimuli = 0
        scheduler.handlers["ckpt_spill_announce"] = self.announce
        scheduler.handlers["ckpt_spill_look"] = self.look
        scheduler.handlers["ckpt_spill_sources"] = self.sources
        ticking = PeriodicCallback(self._tick, _TICK * 1000)
        scheduler.periodic_callbacks[NAME] = ticking
        ticking.start()
        await self.look(())

    # ------------------------------------------------------------------------------------------ who sees what
    async def announce(self, worker: str, stores: Mapping[str, Sequence[str]]) -> list[str]:
        """Take what a worker says it sees; give the roots that manifests name, for it to look there too."""
        self._sees(worker, stores)
        return sorted(self._roots)

    async def look(self, roots: Sequence[str]) -> None:
        """Let all workers look for stores, also in ``roots``, and wait for their answers."""
        self._roots.update(roots)
        await self._ask(list(self._scheduler.workers))

    async def _ask(self, workers: Sequence[str]) -> None:
        now = time.monotonic()
        self._looked.update(dict.fromkeys(workers, now))
        message = {"op": "ckpt_spill_look", "roots": sorted(self._roots)}
        asking = [self._scheduler.broadcast(msg=message, workers=[w], on_error="ignore") for w in workers]
        for answer in await asyncio.gather(*(asyncio.wait_for(a, _ANSWER) for a in asking), return_exceptions=True):
            for worker, stores in answer.items() if isinstance(answer, dict) else ():
                # One that has no plugin yet answers with nothing, and announces itself when it gets it.
                if stores is not None and worker in self._scheduler.workers:
                    self._sees(worker, stores)

    def _sees(self, worker: str, stores: Mapping[str, Sequence[str]]) -> None:
        self._sight.update(worker, {store: Seen(*seen) for store, seen in stores.items()})
        self._silent.pop(worker, None)
        for ts in list(self._scheduler.queued):
            # It was queued when all workers saw it, and this one does not.
            if (job := job_of(ts.run_spec)) and not self._sight.all_see([worker], stores_of(ts.run_spec, job)):
                self._hold(ts, job)
                self._transitions({ts.key: "released"})
        self._kick()

    def add_worker(self, scheduler: Any, worker: str) -> None:
        """Nothing is known of a new worker before it announces what it sees."""

    def remove_worker(self, scheduler: Any, worker: str, **kwargs: Any) -> None:
        """Forget what a worker saw that is gone."""
        self._sight.remove(worker)
        self._silent.pop(worker, None)
        self._looked.pop(worker, None)
        self._kick()

    def valid_workers_downscaling(self, scheduler: Any, workers: list[Any]) -> list[Any]:
        """Keep an adaptive cluster from retiring the only worker that sees something that is waited for."""
        needed = {tuple(self._sight.workers(store)) for store in self._queue.stores()}
        return [ws for ws in workers if (ws.address,) not in needed]

    async def sources(
        self,
        *,
        worker: str,
        key: Hashable,
        stores: Sequence[str],
        failed: Mapping[str, str],
        silent: Sequence[str],
        bandwidth: float | None,
    ) -> list[tuple[str, str]]:
        """Say where a worker can fetch a partition that it cannot read itself.

        Parameters
        ----------
        worker : str
            Who asks.
        key : hashable
            Of the task that reads.
        stores : sequence of str
            That hold the partition.
        failed : mapping of str to str
            Stores of which it is certain that they do not have it, or not sound, and why.
        silent : sequence of str
            Addresses of peers that did not answer; they are left alone for a while.
        bandwidth : float or None
            Measured in the last fetch, in bytes per second.

        Returns
        -------
        list of (str, str)
            Addresses of peers, and the store that each sees.
        """
        now = time.monotonic()
        self._silent.update(dict.fromkeys(silent, now + _SILENCE))
        if bandwidth:
            self._bandwidth.add(bandwidth)
        ts = self._scheduler.tasks.get(key)
        if ts and (job := job_of(ts.run_spec)):
            self._failures[key].update(failed)
            if key not in self._reads:
                self._hold(ts, job)  # if it comes back here, it waits for a worker that sees it
        serving = self._serving(now)
        return [
            (address, store)
            for store in stores
            if store not in failed
            for address in sorted(self._sight.workers(store), key=self._load)
            if address in serving and address != worker
        ]

    def _serving(self, now: float) -> set[str]:
        """Workers that answer, as far as is known: also those that are paused or retiring."""
        return {w for w in self._scheduler.workers if self._silent.get(w, 0.0) <= now}

    def _load(self, worker: str) -> int:
        ws = self._scheduler.workers.get(worker)
        return len(ws.processing) if ws else 0

    # ---------------------------------------------------------------------------------------------- holding reads
    def update_graph(self, scheduler: Any, *, tasks: list[Any], **kwargs: Any) -> None:
        """Hold the reads of a new graph that not every worker can do."""
        shared: dict[tuple[int, tuple[int, ...]], tuple[tuple[str, ...], bool]] = {}
        unseen = False
        for key in tasks:
            ts = scheduler.tasks[key]
            if (job := job_of(ts.run_spec)) is None or ts.state != "released" or key in self._reads:
                continue
            holders = ts.run_spec.args[3]
            if (known := shared.get((id(job), holders))) is None:
                stores = stores_of(ts.run_spec, job)
                known = shared[id(job), holders] = stores, self._sight.all_see(scheduler.workers, stores)
                if not known[1]:
                    unseen = True
                    self._roots.update(ref.root for ref in job.stores)
            if known[1] or ts.worker_restrictions or ts.host_restrictions or ts.resource_restrictions:
                continue
            self._reads[key] = Read(ts.run_spec.args[1], job, known[0])
            ts.worker_restrictions = HELD
        if unseen:
            self._look_again(time.monotonic())

    def _hold(self, ts: Any, job: ReadJob) -> None:
        self._reads[ts.key] = Read(ts.run_spec.args[1], job, stores_of(ts.run_spec, job))
        if ts.state != "processing":
            ts.worker_restrictions = HELD

    def _look_again(self, now: float) -> None:
        """Let workers look once more, as stores may have been made, or mounted, meanwhile."""
        workers = [w for w in self._scheduler.workers if now - self._looked.get(w, -math.inf) >= _LOOK_AGAIN]
        if workers:
            self._scheduler.loop.add_callback(self._ask, workers)

    def transition(self, key: Hashable, start: str, finish: str, *args: Any, **kwargs: Any) -> None:
        """Follow the reads that are held, and watch for slots that open."""
        if (read := self._reads.get(key)) is not None:
            if finish == "released":
                self._scheduler.tasks[key].worker_restrictions = HELD  # it may be wanted again
            elif finish == "no-worker":
                self._wait(key, read)
            elif finish == "forgotten":
                del self._reads[key]
                self._failures.pop(key, None)
            if start == "no-worker":
                self._queue.discard(key)
        if start == "processing":
            self._kick()

    def _wait(self, key: Hashable, read: Read) -> None:
        failed = self._failures.get(key, ())
        stores = tuple(s for s in read.stores if s not in failed) or read.stores
        for store in stores:
            if not self._queue.depth(store):
                self._paces[store] = Pace(time.monotonic())
        self._queue.add(key, self._scheduler.tasks[key].priority, stores)
        self._kick()

    def restart(self, scheduler: Any) -> None:
        """All tasks are forgotten."""
        self._reads.clear()
        self._failures.clear()
        self._queue.clear()

    # ------------------------------------------------------------------------------------------ letting reads go
    def _kick(self) -> None:
        # Transitions may not be started inside a transition; and work that has become ready meanwhile goes first.
        if self._queue and not self._kicked:
            self._kicked = True
            self._scheduler.loop.add_callback(self._drain)

    def _drain(self) -> None:
        """Give free slots to reads, one for each worker in turn."""
        self._kicked = False
        now = time.monotonic()
        serving = self._serving(now)
        workers = sorted(self._candidates(), key=lambda ws: len(ws.processing) / ws.nthreads)
        while workers and self._queue:
            workers = [ws for ws in workers if self._give(ws, now, serving)]

    def _candidates(self) -> set[Any]:
        # Where root tasks of other computations are queued, they have filled all slots.
        scheduler = self._scheduler
        return set(scheduler.running if scheduler.queued else scheduler.idle_task_count)

    def _give(self, ws: Any, now: float, serving: set[str]) -> bool:
        """Let the best read for a worker go to it, if it has a slot; tell whether it may have another."""
        stores = self._sight.stores(ws.address)
        if best := self._queue.best(stores):
            if not self._has_slot(ws, best[0]):
                return False
            key = best[1]
            for store in set(self._queue.stores_of(key)).intersection(stores):
                self._paces[store].taken(now)
        elif not self._has_slot(ws, None) or (key := self._help(ws, now, serving)) is None:
            return False
        self._scheduler.tasks[key].worker_restrictions = {ws.address}
        self._transitions({key: "processing"})
        return True

    def _has_slot(self, ws: Any, priority: Priority | None) -> bool:
        """Tell whether the scheduler would send a queued task to this worker.

        Other queued root tasks have taken every slot as it opened. A read that has priority over them, as it belongs to
        a computation that does, does not wait for them: those that a worker has, and has not to begin with yet for the
        sake of anything, do not count.
        """
        if ws not in self._scheduler.running:
            return False
        saturation = self._scheduler.WORKER_SATURATION
        if math.isinf(saturation):
            return True
        busy = len(ws.processing) - len(ws.long_running)
        if priority is not None and self._scheduler.queued and priority < self._scheduler.queued.peek().priority:
            busy -= sum(not ts.dependencies and ts.priority > priority for ts in ws.processing)
        return bool(busy < max(math.ceil(saturation * ws.nthreads), 1))

    def _help(self, ws: Any, now: float, serving: set[str]) -> Hashable | None:
        """Choose a read of another worker's backlog, where it pays to fetch the partition from there."""
        if math.isinf(self._scheduler.WORKER_SATURATION) and self._sight.stores(ws.address):
            return None
        chosen, longest = None, 0.0
        for store in self._queue.stores():
            workers = [self._scheduler.workers[w] for w in self._sight.workers(store) if w in serving]
            if not workers or not (best := self._queue.best((store,))):
                continue
            duration = self._scheduler.tasks[best[1]].prefix.duration_average
            duration = duration if duration >= 0 else _UNKNOWN_DURATION
            threads = sum(w.nthreads for w in workers)
            wait = self._paces[store].wait(self._queue.depth(store), now, duration / threads)
            bandwidth = self._bandwidth.value or self._scheduler.bandwidth
            nbytes = self._reads[best[1]].job.nbytes
            if wait > longest and help_pays(wait, nbytes, bandwidth, duration):
                chosen, longest = best[1], wait
        return chosen

    def _transitions(self, recommendations: dict[Any, Any]) -> None:
        self._stimuli += 1
        self._scheduler.transitions(recommendations, f"ckpt-spill-{self._stimuli}-{time.time()}")

    # ------------------------------------------------------------------------------------------------ time passes
    def _tick(self) -> None:
        """See to what no event tells of: tasks that secede, workers that come back, stores that do not."""
        if not self._queue:
            self._lost_since.clear()
            return
        now = time.monotonic()
        running = bool(self._scheduler.running)
        self._keep_from_timing_out(now, running=running)
        lost = [store for store in self._queue.stores() if not self._sight.workers(store)]
        self._lost_since = {s: self._lost_since.get(s, now) for s in lost} if running else {}
        if self._lost_since:
            self._look_again(now)
            self._give_up({s for s, since in self._lost_since.items() if now - since >= patience()})
        self._kick()

    def _keep_from_timing_out(self, now: float, *, running: bool) -> None:
        """Keep ``no-workers-timeout`` away from reads that wait for a slot: there are workers that can run them.

        Without any worker it is for them, too, from when the last one left.
        """
        timeout = self._scheduler.no_workers_timeout
        if timeout is None or now - self._refreshed < timeout / 4 or not (running or self._refreshed):
            return
        self._refreshed = now if running else 0.0
        unrunnable = self._scheduler.unrunnable
        for key in self._queue:
            ts = self._scheduler.tasks[key]
            if unrunnable.pop(ts, None) is not None:
                unrunnable[ts] = now

    def _give_up(self, stores: set[str]) -> None:
        """Fail the reads that only stores could serve which have been away for too long."""
        if not stores:
            return
        waiting = {key for store in stores for key in self._queue.keys_of(store)}
        doomed = {key for key in waiting if stores.issuperset(self._queue.stores_of(key))}
        by_job: defaultdict[ReadJob, list[Hashable]] = defaultdict(list)
        for key in doomed:
            by_job[self._reads[key].job].append(key)
        for job, keys in by_job.items():
            partitions = {self._reads[key].partition: self._reads[key].stores for key in keys}
            asked = sum(read.job == job for read in self._reads.values())
            error = lost_partitions(job, partitions, asked, [t for k in keys for t in self._failures[k].values()])
            logger.error("%s", error)
            recommendations: dict[Any, Any] = {}
            self._stimuli += 1
            stimulus = f"ckpt-spill-lost-{self._stimuli}"
            for key in keys:
                recommendations.update(
                    self._scheduler.transition(
                        key, "erred", stimulus_id=stimulus, exception=pickle.dumps(error), cause=key
                    )
                )
            self._scheduler.transitions(recommendations, stimulus)


def job_of(spec: Any) -> ReadJob | None:
    """Give the job of a task that reads a partition; None for other tasks."""
    args = getattr(spec, "args", None)
    return args[0] if args and type(args[0]) is ReadJob else None


def stores_of(spec: Any, job: ReadJob) -> tuple[str, ...]:
    """Give the ids of the stores that hold what a task reads."""
    return tuple(job.stores[h].id for h in spec.args[3])


async def dask_setup(scheduler: Any) -> None:
    """Preload."""
    if NAME not in scheduler.plugins:
        plugin = Steering()
        await plugin.start(scheduler)
        scheduler.add_plugin(plugin, name=NAME)
