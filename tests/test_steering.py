"""The scheduler's plugin in a real scheduler: whom it lets run ahead, and whom an adaptive cluster may retire.

Scheduler and workers run in this process. Workers say that they see stores, and there are none: reads are tasks that
look like reads.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from pathlib import Path
from types import SimpleNamespace

import dask
import pytest
from dask._task_spec import Task
from distributed import Client, Scheduler, Status, Worker, wait

import ckpt_spill as cs
from ckpt_spill.cluster import dispatch
from ckpt_spill.cluster.scheduler import NAME, dask_setup
from ckpt_spill.cluster.worker import Sharing
from ckpt_spill.jobs import ReadJob, StoreRef
from ckpt_spill.store.runs import Run
from tests.clusters import VALIDATE

TOO_LARGE = 1 << 60  # to be fetched by a worker that does not see it
HERE = "127.0.0.1"
LIMIT = 60  # seconds, for all that a test does, which should take one or two


@contextlib.asynccontextmanager
async def steered(*stores, nthreads=1):
    """A scheduler with the plugin, a worker for each store, which has its name, and a client."""
    async with contextlib.AsyncExitStack() as stack:
        stack.enter_context(dask.config.set(VALIDATE))
        scheduler = await stack.enter_async_context(Scheduler(host=HERE, port=0, dashboard_address=":0"))
        await dask_setup(scheduler)
        workers = []
        for store in stores:
            starting = Worker(scheduler.address, host=HERE, name=store, nthreads=nthreads, memory_limit=0)
            workers.append(await stack.enter_async_context(starting))
            workers[-1].handlers["ckpt_spill_look"] = says(store)
        await scheduler.handlers["ckpt_spill_look"]([])
        client = await stack.enter_async_context(Client(scheduler.address, asynchronous=True))
        yield scheduler, workers, client


def says(store):
    async def look(roots):
        return {store: ("/root", "host", "domain")}

    return look


def read(job, partition, gate, holders):
    """Stand in for ``read_partition``; wait at the gate, if there is one, until it is opened."""
    while gate and not Path(gate).exists():
        time.sleep(0.01)
    return partition


def reads(client, stores, gates):
    """Have partitions read that lie in these stores, in this order; give the futures."""
    refs = [StoreRef(store, "/root", "host") for store in sorted(set(stores))]
    job = ReadJob(Run("x", 1, "0" * 16, "1" * 8), tuple(refs), None, TOO_LARGE)
    futures = []
    for n, store in enumerate(stores):
        key, holders = f"read-{n}", tuple(i for i, ref in enumerate(refs) if ref.id == store)
        task = Task(key, read, job, n, gates.get(store), holders, _data_producer=True)
        futures.append(client.get({key: task}, key, sync=False, priority=-n))
    return futures


@contextlib.contextmanager
def opened(gate):
    """Open a gate at the end, whatever happens."""
    try:
        yield
    finally:
        gate.touch()


async def until(condition):
    while not condition():
        await asyncio.sleep(0.01)


async def at_rest(ws):
    """Wait until a worker has nothing to do, also after the scheduler's loop has come to giving it the next read."""
    await until(lambda: not ws.processing)
    await asyncio.sleep(0.01)
    if ws.processing:
        await at_rest(ws)


@pytest.mark.parametrize("nthreads", [1, 2])
def test_no_worker_runs_ahead(tmp_path, monkeypatch, nthreads):
    """Of two workers one is stuck, which nobody knows yet: the other one leaves the reads that come after as many of
    those that wait for the stuck one as there are threads. Once it is known it does them.
    """
    clock = SimpleNamespace(now=0.0, monotonic=lambda: clock.now, time=time.time)
    monkeypatch.setattr(dispatch, "time", clock)

    async def main():
        gate, stores = tmp_path / "gate", "ab" * 12
        async with steered("a", "b", nthreads=nthreads) as (scheduler, [_, free], client):
            with opened(gate):
                futures = reads(client, stores, {"a": str(gate)})
                await until(lambda: len(scheduler.tasks) == len(stores))
                await at_rest(scheduler.workers[free.address])
                waiting = [scheduler.tasks[f.key].state == "no-worker" for f in futures]
                passed = [sum(waiting[:n:2]) for n in range(len(stores))]
                of_free = range(1, len(stores), 2)
                assert [n for n in of_free if not waiting[n]] == [n for n in of_free if passed[n] < 2 * nthreads]
                assert waiting[-1]
                clock.now += LIMIT
                assert await client.gather(futures[1::2]) == list(of_free)
            assert await client.gather(futures) == list(range(len(stores)))

    asyncio.run(asyncio.wait_for(main(), LIMIT))


def test_the_only_worker_that_sees_what_is_waited_for_is_not_retired():
    """While a read waits for a worker that is paused, an adaptive cluster scales down, by the calls that
    ``distributed.Adaptive`` makes. That worker is idle and has least in memory, so it was the first to go; now others
    are, and the read is done.
    """

    async def main():
        async with steered("a", "b", "c") as (scheduler, [a, b, c], client):
            data = [client.submit(bytes, 1000, workers=[w.address], pure=False) for w in (b, c)]
            await wait(data)
            assert scheduler.workers_to_close(target=2, attribute="name") == ["a"]
            a.status = Status.paused
            await until(lambda: scheduler.workers[a.address].status == Status.paused)
            [future] = reads(client, "a", {})
            await until(lambda: [ts.state for ts in scheduler.tasks.values()].count("no-worker") == 1)
            assert not scheduler.workers[a.address].processing
            assert set(scheduler.workers_to_close(target=0, attribute="name")) == {"b", "c"}
            names = scheduler.workers_to_close(target=2, attribute="name")
            await scheduler.retire_workers(names=names, remove=True, close_workers=True)
            assert len(scheduler.workers) == 2
            a.status = Status.running
            assert await future == 0
            assert "a" in scheduler.workers_to_close(target=0, attribute="name")

    asyncio.run(asyncio.wait_for(main(), LIMIT))


def test_of_several_workers_that_see_what_is_waited_for_one_is_not_retired():
    """Two workers see the same store and are paused; scaled down to none, the cluster keeps one of them."""

    async def main():
        async with steered("a", "b", "c") as (scheduler, [a, b, _], client):
            b.handlers["ckpt_spill_look"] = says("a")
            await scheduler.handlers["ckpt_spill_look"]([])
            for worker in (a, b):
                worker.status = Status.paused
            await until(lambda: len(scheduler.running) == 1)
            [future] = reads(client, "a", {})
            await until(lambda: [ts.state for ts in scheduler.tasks.values()].count("no-worker") == 1)
            closing = scheduler.workers_to_close(target=0, attribute="name")
            assert len(closing) == 2
            assert "c" in closing
            for worker in (a, b):
                worker.status = Status.running
            assert await future == 0

    asyncio.run(asyncio.wait_for(main(), LIMIT))


def test_a_store_that_nobody_sees_any_more(caplog):
    """The only worker that sees a store is retired by hand: the log of the scheduler says at once what waits for it and
    how long, and the error in the end does not count as present what was read before. It may still be at a read when it
    is removed, and announce itself once more, which does not count.
    """

    async def main():
        async with steered("a", "b") as (scheduler, [a, _], client):
            a.status = Status.paused
            await until(lambda: len(scheduler.running) == 1)
            futures = reads(client, "bab", {})
            assert await client.gather(futures[::2]) == [0, 2]
            assert scheduler.tasks["read-1"].state == "no-worker"
            await scheduler.retire_workers(names=["a"], remove=True, close_workers=True)
            await scheduler.handlers["ckpt_spill_announce"](a.address, await says("a")([]))
            with pytest.raises(cs.MissingPartitionError) as e:
                await futures[1]
            place = "store a (/root on host host)"
            said, error = (r.getMessage() for r in caplog.records if r.name == "ckpt_spill")
            assert said.startswith(f"no worker sees {place}, for which reads of checkpoint 'x' wait")
            assert said.endswith("if it is not back within 0.2 seconds")
            assert error == str(e.value)
            assert "of 3 wanted partitions 1 cannot be read, not counting those that were read before: 1." in error
            assert place in error

    with dask.config.set({"ckpt-spill.patience": "200ms"}):
        asyncio.run(asyncio.wait_for(main(), LIMIT))


def test_a_worker_without_the_plugin_is_asked_once(caplog):
    """A worker that lost its plugin says so once in its log, and not each time that somebody looks for stores."""

    async def main():
        async with steered("a", "b") as (scheduler, [a, _], client):
            await a.plugin_remove(NAME)
            for _ in range(3):
                await scheduler.handlers["ckpt_spill_look"]([])
            assert sum("No handler ckpt_spill_look" in r.getMessage() for r in caplog.records) == 1
            await a.plugin_add(Sharing())
            a.handlers["ckpt_spill_look"] = says("c")
            await scheduler.handlers["ckpt_spill_look"]([])
            assert await reads(client, "c", {})[0] == 0

    asyncio.run(asyncio.wait_for(main(), LIMIT))
