"""Partitions that a worker was sent by a peer are clean there, too."""

from __future__ import annotations

import asyncio
import pickle
import time
from types import SimpleNamespace

import pytest
from distributed import wait

import ckpt_spill as cs
from ckpt_spill.clean import CleanFile
from ckpt_spill.cluster import arrivals
from ckpt_spill.jobs import ReadJob, StoreRef
from ckpt_spill.spill.host import HostSpill
from ckpt_spill.store.partition import Identity
from ckpt_spill.store.runs import Run
from ckpt_spill.store.store import Store
from tests.spilling import LIMIT, array_of, frame, keep, noise, spill_all, spilled_files, written
from tests.strict import diff
from tests.test_spill_host import disk_tier

pytestmark = pytest.mark.slow


@pytest.fixture
def root(tmp_path):
    return str(tmp_path / "root")


@pytest.fixture
def two(cluster, root):
    """Two workers that spill, and evict by hand only."""
    return cluster(2, data=cs.host_spill(root, memory_limit=100 * LIMIT))


def to_both(client, kept):
    """Let both workers hold all of a collection."""
    client.replicate(kept, n=2)
    assert {len(workers) for workers in client.who_has(kept).values()} == {2}


def wait_for_clean(client, number):
    """Wait until each worker knows the files of so many of its values."""
    end = time.monotonic() + 20
    while set(client.run(lambda dask_worker: len(dask_worker.data.tier.clean)).values()) != {number}:
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.parametrize("columns", [None, ["b"]])
def test_replicas_are_evicted_for_nothing(two, root, columns):
    """Those that were read by another worker; and read again they are what they were."""
    m = cs.persist_to_disk(frame(6), name="x", root=root)
    kept = keep(two, cs.rehydrate(m, columns=columns))
    to_both(two, kept)
    wait_for_clean(two, 6)
    spill_all(two)
    assert written(two) == 0
    assert len(spilled_files(root)) == 12
    expected = frame(6).compute(scheduler="threads")
    one, other = two.has_what()
    for address in (one, other):
        parts = [two.submit(lambda part: part, part, workers=[address], pure=False) for part in two.futures_of(kept)]
        whole = two.submit(concat, parts, workers=[address]).result()
        assert diff(whole, expected[columns or ["a", "b", "c"]]) == []


def concat(parts):
    import pandas as pd

    return pd.concat(parts)


def test_a_frame_that_is_used_under_another_key(two, root):
    """Dask gives a persisted frame to each task that uses it by an alias; that is nothing new, on either worker."""
    m = cs.persist_to_disk(frame(6), name="x", root=root)
    kept = keep(two, cs.rehydrate(m))
    for _ in range(3):
        again = keep(two, kept.map_partitions(lambda part: part))  # holds the aliases
        to_both(two, kept)
        names = {key[0] for held in two.has_what().values() for key in held}
        assert len([name for name in names if name.startswith("rehydrate-")]) >= 1
        spill_all(two)
        del again
    assert diff(kept.compute(), frame(6).compute(scheduler="threads")) == []


def test_a_scan_writes_nothing(cluster, root):
    """Of a persisted frame that is twice as large as the memory of its workers, in the thick of their evictions."""
    client = cluster(2, data=cs.host_spill(root, memory_limit=LIMIT))
    m = cs.persist_to_disk(frame(30), name="x", root=root)
    kept = keep(client, cs.rehydrate(m))
    expected = frame(30).compute(scheduler="threads")
    for n in range(3):
        found = kept.map_partitions(lambda part, n: len(part) + n, n, meta=(None, "i8")).compute()
        assert found.sum() == len(expected) + 30 * n
    assert written(client) == 0
    assert len(spilled_files(root)) > 10


def test_what_is_computed_of_them_is_not_clean(two, root):
    m = cs.persist_to_disk(noise(4), name="x", root=root)
    kept = keep(two, cs.rehydrate(m) + 1)
    to_both(two, kept)
    spill_all(two)
    assert written(two) > 8 * 2 * 1000**2
    assert (array_of(m) + 1 == kept.compute()).all()


def test_files_that_a_worker_does_not_see(two, root, tmp_path):
    """There the value is written, as any other."""
    m = cs.persist_to_disk(noise(4), name="x", root=root)
    kept = keep(two, cs.rehydrate(m))
    blind, *_ = two.has_what()

    def look_away(dask_worker):
        dask_worker.plugins["ckpt-spill"]._stores = {}

    two.run(look_away, workers=[blind])
    to_both(two, kept)
    wait(kept)
    spill_all(two)
    assert written(two) > 0
    assert (kept.compute() == noise(4).compute(scheduler="threads")).all()


def test_a_value_that_has_gone_is_not_noted(tmp_path):
    """The answer came too late, and what is set under that key next is another thing."""
    tier = disk_tier(str(tmp_path / "root"))
    memory = HostSpill(tier, 10**9)
    file = CleanFile(Store.open(str(tmp_path / "root")), str(tmp_path / "file"), Identity("x", 1, 0), b"0" * 32, None)
    memory.learn("k", file)
    assert tier.clean == {}
    memory["k"] = 1
    memory.learn("k", file)
    assert tier.clean == {"k": file}
    del memory["k"]
    assert tier.clean == {}
    memory.close()


# -------------------------------------------------------------------------------------------------- before the answer
KEY = "rehydrate-x"


class Worker:
    """What is needed of one: it was sent a partition; ``answer`` is what the scheduler does when it is asked."""

    def __init__(self, root, answer):
        self.data = HostSpill(disk_tier(root), 10**9)
        self.store = Store.open(root)
        self.loop, self.scheduler, self.address = self, SimpleNamespace(ckpt_spill_reads=answer), "here"
        self.callbacks = []
        self.add_callback = self.callbacks.append
        asking = arrivals.Arrivals(self, {self.store.id: self.store}.get)
        asking.follow(KEY, "fetch", "flight")
        self.data[KEY] = 1
        asking.follow(KEY, "flight", "memory")
        self.data["other"] = 2

    def evicted(self):
        """Evict one; tell which."""
        before = set(self.data.slow)
        assert self.data.evict() > 0
        [key] = set(self.data.slow) - before
        return key

    async def ask(self):
        """Ask, until it has no more effect on what is evicted."""
        [callback] = self.callbacks
        asking = asyncio.create_task(callback())
        async with asyncio.timeout(60):
            while self.data.tier.awaited:
                await asyncio.sleep(0)
        return asking


async def nothing(keys):
    return pickle.dumps([])


async def lost(keys):
    raise OSError


async def wrong(keys):
    raise ValueError


async def never(keys):
    await asyncio.Event().wait()


def test_it_is_evicted_last(root):
    """As long as nothing has been heard; where there is nothing else, it is."""
    worker = Worker(root, never)
    assert [worker.evicted(), worker.evicted()] == ["other", KEY]
    worker.data.close()


@pytest.mark.parametrize("answer", [nothing, lost, wrong, never])
def test_after_the_answer_it_is_as_any_other(root, monkeypatch, answer):
    """Whatever it was, and also when none comes."""
    monkeypatch.setattr(arrivals, "_PATIENCE", 0.01)
    worker = Worker(root, answer)

    async def ask():
        asking = await worker.ask()
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)

    asyncio.run(ask())
    assert [worker.evicted(), worker.evicted()] == [KEY, "other"]
    worker.data.close()


@pytest.mark.parametrize("backend", [None, "pandas"])
def test_a_late_answer_counts(root, monkeypatch, backend):
    """What it is in a file of, and as which library's, is known from then on."""
    monkeypatch.setattr(arrivals, "_PATIENCE", 0.01)
    run, digest = Run("x", 1, "0" * 16, "0" * 8), b"0" * 32

    async def ask():
        heard = asyncio.Event()

        async def late(keys):
            await heard.wait()
            job = ReadJob(run, (StoreRef(worker.store.id, root, "here"),), ("b",), 1, backend)
            return pickle.dumps([(key, job, 0, digest, [0]) for key in keys])

        worker = Worker(root, late)
        asking = await worker.ask()
        assert worker.data.tier.clean == {}
        heard.set()
        await asking
        return worker

    worker = asyncio.run(ask())
    path = worker.store.partition_path(run, 0, digest)
    file = CleanFile(worker.store, path, Identity("x", 1, 0), digest, ("b",), backend)
    assert worker.data.tier.clean == {KEY: file}
    worker.data.close()
