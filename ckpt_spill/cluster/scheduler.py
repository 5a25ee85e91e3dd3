"""The scheduler's side: reads are held until there is a worker for them that sees their file.

A read of a partition that not every worker can see is restricted to an address that no worker has, which lets it settle
in the state ``no-worker``. When a worker that sees the file has a free slot by the scheduler's own rule for queued
tasks, the read is restricted to it and let go. So reads are where their files are, downstream work goes first, and no
more partitions are loaded than the scheduler's queue would load. Where every worker sees the file nothing is held: the
read is a queued root task like any other.

It gives the workers their plugin, those that are there and those that come.

As a preload of ``dask scheduler``: ``--preload ckpt_spill.cluster.scheduler``.

What is used here and in ``lookout`` and ``dispatch`` of distributed beyond its documented interface: ``transition`` and
``transitions``, ``handlers``, ``register_worker_plugin``, ``unrunnable``, ``queued``, ``idle_task_count``, ``running``,
``no_workers_timeout`` and ``WORKER_SATURATION`` of the scheduler, and ``worker_restrictions`` and ``run_spec`` of a
task. Plugins get no other means to decide where a task runs.
"""

from __future__ import annotations

import logging
import pickle
import time
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, NamedTuple

from distributed import SchedulerPlugin
from tornado.ioloop import PeriodicCallback

from ckpt_spill.cluster.arrivals import reads_behind
from ckpt_spill.cluster.dispatch import Dispatch
from ckpt_spill.cluster.lookout import Lookout
from ckpt_spill.cluster.losses import lost_partitions, waiting
from ckpt_spill.cluster.sight import NAME
from ckpt_spill.cluster.worker import Sharing
from ckpt_spill.config import patience
from ckpt_spill.jobs import ReadJob, is_read

HELD = frozenset({"ckpt-spill://held-for-a-worker-that-sees-the-file"})
"""Restriction to an address that no worker has."""

_TICK = 0.5  # seconds

logger = logging.getLogger("ckpt_spill")


class Read(NamedTuple):
    """A read that is held, or was. Reads of one job with the same holders share all but the first."""

    partition: int
    job: ReadJob
    stores: tuple[str, ...]

    @classmethod
    def of(cls, spec: Any) -> Read | None:
        """Recognise a task that reads a partition; None for other tasks."""
        if not is_read(spec):
            return None
        job, partition, _, holders = spec.args
        return cls(partition, job, tuple(job.stores[h].id for h in holders))


class Steering(SchedulerPlugin):
    """Sees to it that partitions are read where they lie, and that reads nobody can do end."""

    name = NAME
    idempotent = True

    async def start(self, scheduler: Any) -> None:
        """Take up work in a scheduler, which may have workers already."""
        self._scheduler = scheduler
        self._lookout = Lookout(scheduler, self._has_looked)
        self._sight = self._lookout.sight
        self._dispatch = Dispatch(scheduler, self._sight)
        self._reads: dict[Hashable, Read] = {}
        self._failures: defaultdict[Hashable, dict[str, str]] = defaultdict(dict)
        self._lost_since: dict[str, float] = {}
        self._refreshed = 0.0
        scheduler.handlers["ckpt_spill_announce"] = self._lookout.announce
        scheduler.handlers["ckpt_spill_look"] = self._lookout.look
        scheduler.handlers["ckpt_spill_sources"] = self.sources
        scheduler.handlers["ckpt_spill_reads"] = self.reads
        ticking = PeriodicCallback(self._tick, _TICK * 1000)
        scheduler.periodic_callbacks[NAME] = ticking
        ticking.start()
        try:
            await scheduler.register_worker_plugin(None, pickle.dumps(Sharing()), NAME, idempotent=False)
        except OSError as e:  # of a worker that is lost just now
            logger.warning("a worker did not answer when it was given the plugin: %r", e)
        scheduler.set_metadata([NAME], True)  # noqa: FBT003 (for clients to see)

    # ---------------------------------------------------------------------------------------------------- workers
    def _has_looked(self, worker: str) -> None:
        self._dispatch.heard(worker)
        for ts in list(self._scheduler.queued):
            # It was queued when all workers saw its file, and this one does not.
            if (read := Read.of(ts.run_spec)) and not self._sight.all_see([worker], read.stores):
                self._hold(ts, read)
                self._scheduler.transitions({ts.key: "released"}, f"ckpt-spill-hold-{time.time()}")
        self._dispatch.kick()

    def remove_worker(self, scheduler: Any, worker: str, **kwargs: Any) -> None:
        """Forget what a worker saw that is gone."""
        self._lookout.forget(worker)
        self._dispatch.heard(worker)
        self._dispatch.kick()

    def valid_workers_downscaling(self, scheduler: Any, workers: list[Any]) -> list[Any]:
        """Keep an adaptive cluster from retiring all workers that see something that is waited for."""
        closing, kept = {ws.address for ws in workers}, set[str]()
        for store in self._dispatch.queue.stores():
            seeing = set(self._sight.workers(store))
            if seeing and seeing <= closing and seeing.isdisjoint(kept):
                kept.add(min(seeing))
        return [ws for ws in workers if ws.address not in kept]

    async def sources(
        self,
        *,
        worker: str,
        key: Hashable,
        partition: int,
        stores: Sequence[str],
        failed: Mapping[str, str],
        silent: Sequence[str],
        bandwidth: float | None,
    ) -> dict[str, Any]:
        """Say where a worker can fetch a partition that it cannot read itself.

        Parameters
        ----------
        worker : str
            Who asks.
        key : hashable
            Of the task that asks.
        partition : int
        stores : sequence of str
            That hold the partition.
        failed : mapping of str to str
            Stores of which it is certain that they do not have it, or not sound, and why.
        silent : sequence of str
            Addresses of peers that did not answer, or no longer see the store.
        bandwidth : float or None
            Measured in the last fetch, in bytes per second.

        Returns
        -------
        dict
            ``peers``: addresses, and the store that each sees. ``waits``: whether the task, when it is rescheduled,
            waits until there is a worker that sees one of the stores, or is failed; not where it is a part of another
            task, or somebody has said where it runs.
        """
        for peer in silent:
            self._dispatch.silence(peer)
        if bandwidth:
            self._dispatch.measured(bandwidth)
        peers = [(p, s) for s in stores if s not in failed for p in self._dispatch.peers(s) if p != worker]
        return {"peers": peers, "waits": self._may_wait(key, partition, failed)}

    async def reads(self, *, keys: Sequence[Hashable]) -> bytes:
        """Say what is behind some keys: see ``arrivals.reads_behind``."""
        return reads_behind(self._scheduler, keys)

    def _may_wait(self, key: Hashable, partition: int, failed: Mapping[str, str]) -> bool:
        ts = self._scheduler.tasks.get(key)
        read = Read.of(ts.run_spec) if ts else None
        if read is None or read.partition != partition:
            return False  # a read inside of another task
        if key not in self._reads:
            if is_restricted(ts):
                return False
            self._hold(ts, read)
        self._failures[key].update(failed)
        return True

    # ---------------------------------------------------------------------------------------------------- holding
    def update_graph(self, scheduler: Any, *, tasks: list[Any], **kwargs: Any) -> None:
        """Hold the reads of a new graph that not every worker can do."""
        shared: dict[tuple[int, tuple[int, ...]], tuple[tuple[str, ...], bool]] = {}
        for key in tasks:
            ts = scheduler.tasks[key]
            # Spelt out, and looked up once for all that have the same holders: there may be very many.
            args = getattr(ts.run_spec, "args", None)
            if not args or type(args[0]) is not ReadJob or ts.state != "released" or key in self._reads:
                continue
            job, partition, _, holders = args
            if (known := shared.get((id(job), holders))) is None:
                stores = tuple(job.stores[h].id for h in holders)
                known = shared[id(job), holders] = stores, self._sight.all_see(scheduler.workers, stores)
                if not known[1]:
                    self._lookout.look_again(ref.root for ref in job.stores)
            if not known[1] and not is_restricted(ts):
                self._hold(ts, Read(partition, job, known[0]))

    def _hold(self, ts: Any, read: Read) -> None:
        self._reads[ts.key] = read
        if ts.state != "processing":
            ts.worker_restrictions = HELD

    def transition(self, key: Hashable, start: str, finish: str, *args: Any, **kwargs: Any) -> None:
        """Follow the reads that are held, and watch for slots that open."""
        if (read := self._reads.get(key)) is not None:
            if start == "no-worker":
                self._dispatch.discard(key)
            if finish == "released":
                self._scheduler.tasks[key].worker_restrictions = HELD  # it may be wanted again
            elif finish == "no-worker":
                failed = self._failures.get(key, ())
                stores = tuple(s for s in read.stores if s not in failed) or read.stores
                self._dispatch.wait(key, stores, read.job.nbytes)
            elif finish == "forgotten":
                del self._reads[key]
                self._failures.pop(key, None)
        if start == "processing":
            self._dispatch.freed(kwargs.get("worker"))

    def restart(self, scheduler: Any) -> None:
        """Forget all tasks."""
        self._reads.clear()
        self._failures.clear()
        self._dispatch.clear()

    # ------------------------------------------------------------------------------------------------ time passes
    def _tick(self) -> None:
        """See to what no event tells of: tasks that secede, workers that resume, stores that do not come back."""
        queue = self._dispatch.queue
        if not queue:
            self._lost_since.clear()
            return
        now = time.monotonic()
        running = bool(self._scheduler.running)
        self._keep_from_timing_out(now, running=running)
        lost = [store for store in queue.stores() if not self._sight.workers(store)]
        before, self._lost_since = self._lost_since, {s: self._lost_since.get(s, now) for s in lost} if running else {}
        if self._lost_since:
            for store in self._lost_since.keys() - before.keys():
                logger.warning("%s", waiting([self._reads[key].job for key in queue.keys_of(store)], store, patience()))
            self._lookout.look_again()
            self._give_up({s for s, since in self._lost_since.items() if now - since >= patience()})
        self._dispatch.kick()

    def _keep_from_timing_out(self, now: float, *, running: bool) -> None:
        """Keep ``no-workers-timeout`` away from reads that wait for a slot: there are workers that can run them.

        Without any worker it is for them, too, from when the last one left.
        """
        timeout = self._scheduler.no_workers_timeout
        if timeout is None or now - self._refreshed < timeout / 4 or not (running or self._refreshed):
            return
        self._refreshed = now if running else 0.0
        unrunnable = self._scheduler.unrunnable  # has to stay in the order of its times
        for key in self._dispatch.queue:
            ts = self._scheduler.tasks[key]
            if unrunnable.pop(ts, None) is not None:
                unrunnable[ts] = now

    def _give_up(self, stores: set[str]) -> None:
        """Fail the reads that need stores which have been away for too long: all of a job with one error."""
        queue = self._dispatch.queue
        waiting = {key for store in stores for key in queue.keys_of(store)}
        by_job: defaultdict[ReadJob, list[Hashable]] = defaultdict(list)
        for key in waiting:
            if stores.issuperset(queue.stores_of(key)):
                by_job[self._reads[key].job].append(key)
        for job, keys in by_job.items():
            partitions = {self._reads[key].partition: self._reads[key].stores for key in keys}
            known = (Read.of(ts.run_spec) for ts in self._scheduler.tasks.values())
            asked = len({read.partition for read in known if read and read.job == job})
            reasons = [text for key in keys for text in self._failures[key].values()]
            error = lost_partitions(job, partitions, asked, reasons)
            logger.error("%s", error)
            self._fail(keys, error)

    def _fail(self, keys: Sequence[Hashable], error: Exception) -> None:
        stimulus, content = f"ckpt-spill-lost-{time.time()}", pickle.dumps(error)
        recommendations: dict[Any, Any] = {}
        for key in keys:
            recommendations |= self._scheduler.transition(key, "erred", stimulus, exception=content, cause=key)
        self._scheduler.transitions(recommendations, stimulus)


def is_restricted(ts: Any) -> bool:
    """Tell whether somebody else has said where a task has to run."""
    return bool(ts.worker_restrictions or ts.host_restrictions or ts.resource_restrictions)


async def dask_setup(scheduler: Any) -> None:
    """Preload."""
    if NAME not in scheduler.plugins:
        plugin = Steering()
        await plugin.start(scheduler)
        scheduler.add_plugin(plugin, name=NAME)
