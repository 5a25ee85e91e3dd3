"""Reads go to where their files are, on real nodes with disks of their own, and nothing else changes.

Scheduler and workers validate their state throughout. Fetching is made to look slow where a test wants every read to be
local, and fast where it wants help.
"""

from __future__ import annotations

import pickle
import time

import dask
import dask.array as da
import dask.bag as db
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from distributed import Client, wait, worker_client

import ckpt_spill as cs
from tests.nodes import Nodes, require_nodes

pytestmark = pytest.mark.slow

NEVER_HELP = {"distributed.scheduler.bandwidth": 1000}
STAY = {"distributed.scheduler.work-stealing": False}
PATIENCE = {"ckpt-spill.patience": "3s"}


def block(n, size=1000):
    return np.random.default_rng(n).random(size)


def rows(n):
    return pd.DataFrame({"x": block(n), "g": np.arange(1000) % 7, "s": [f"{n}-{k}" for k in range(1000)]})


def slowly(value, seconds=0.1):
    time.sleep(seconds)
    return value


def counts(nodes):
    """Reads of all workers, by kind."""

    def of_worker(dask_worker):
        return dict(dask_worker.plugins["ckpt-spill"].counts)

    per_worker = nodes.client.run(of_worker).values()
    return {kind: sum(c.get(kind, 0) for c in per_worker) for kind in ("local", "fetched", "served")}


class Counting:
    """Reads that were done inside of a with block."""

    def __init__(self, nodes):
        self._nodes = nodes

    def __enter__(self):
        self._before = counts(self._nodes)
        return self

    def __exit__(self, *exc_info):
        after = counts(self._nodes)
        self.local, self.fetched, self.served = (after[k] - self._before[k] for k in ("local", "fetched", "served"))


def evenly(nodes, make, n, per_node=4):
    """Give a collection whose partitions are in memory, the same number on each of n nodes; ``make`` makes one part."""
    parts = []
    for i in range(n):
        part = make(range(i * per_node, (i + 1) * per_node))
        parts.append(nodes.client.persist(part, workers=nodes.addresses(i)))
    wait(parts)
    return parts


def frame(numbers):
    return dd.from_map(rows, list(numbers), meta=rows(0).iloc[:0])


def array(numbers):
    return da.concatenate([da.from_delayed(dask.delayed(block)(n), (1000,), "f8") for n in numbers])


def bag(numbers):
    return db.from_delayed([dask.delayed(list)([n, n + 1]) for n in numbers])


def held(dask_scheduler):
    """How many reads are held now, and the restrictions of all tasks that are known."""
    plugin = dask_scheduler.plugins["ckpt-spill"]
    restricted = sum(bool(ts.worker_restrictions) for ts in dask_scheduler.tasks.values())
    return len(plugin._reads), restricted


@pytest.fixture(scope="module")
def four(tmp_path_factory):
    """Four nodes for tests that stop none; all reads are local, as nobody helps."""
    require_nodes()
    directory = tmp_path_factory.mktemp("four")
    with Nodes(4, directory=directory, config=NEVER_HELP | STAY) as nodes:
        yield nodes


@pytest.fixture
def saved(four, tmp_path):
    """Save collections of 16 partitions, four on each node."""

    def save(make, concatenate, name):
        with four.client.as_current():
            collection = concatenate(evenly(four, make, 4))
            m = cs.persist_to_disk(collection, name=name, token=name, root=str(four.root))
        per_store = np.bincount([p.holders[0] for p in m.partitions], minlength=4)
        assert per_store.tolist() == [4, 4, 4, 4]
        return m

    return save


class TestLocality:
    """Cases C01, C02, C05: locality survives optimisation, needs no annotations, and nothing is stolen."""

    @pytest.mark.parametrize(
        ("name", "query"),
        [
            ("sum", lambda f: f.x.sum()),
            ("describe", lambda f: f.describe()),
            ("groupby", lambda f: f.groupby("g").x.mean()),
            ("shuffle", lambda f: f.shuffle("g", shuffle_method="tasks").x.sum()),
            ("p2p", lambda f: f.shuffle("g", shuffle_method="p2p").x.sum()),
            ("repartition", lambda f: f.repartition(npartitions=3).x.sum()),
            ("overlap", lambda f: f.x.map_overlap(lambda p: p.rolling(3).mean(), 2, 0).sum()),
            ("two columns", lambda f: f[["g", "x"]].sum()),
        ],
    )
    def test_frames(self, four, saved, name, query):
        """Every partition of a frame is read where it lies, whatever is done with it, and the values are right."""
        m = saved(frame, dd.concat, "frame")
        with four.client.as_current():
            with Counting(four) as reads:
                result = query(cs.rehydrate(m)).compute()
            expected = query(frame(range(16))).compute()
        assert np.allclose(np.sort(np.ravel(result)), np.sort(np.ravel(expected)), equal_nan=True)
        assert reads.fetched == 0
        assert reads.local >= 16

    def test_arrays_and_bags(self, four, saved):
        """The same for arrays, which dask optimises in another way, and for bags."""
        m, b = saved(array, da.concatenate, "array"), saved(bag, db.concat, "bag")
        with four.client.as_current(), Counting(four) as reads:
            back = cs.rehydrate(m)
            assert np.array_equal(
                (back + 0)[10:15900].compute(), np.concatenate([block(n) for n in range(16)])[10:15900]
            )
            assert back.rechunk(2500).sum().compute() == pytest.approx(sum(block(n).sum() for n in range(16)))
            assert cs.rehydrate(b).map(lambda v: v * 2).sum().compute() == sum(4 * n + 2 for n in range(16))
        assert (reads.local, reads.fetched) == (48, 0)

    def test_saving_what_was_read(self, four, saved):
        """A checkpoint made of another one is written where that one is."""
        m = saved(array, da.concatenate, "array")
        with four.client.as_current(), Counting(four) as reads:
            again = cs.persist_to_disk(cs.rehydrate(m) * 2, name="twice", root=str(four.root))
            assert reads is not None
            assert np.array_equal(cs.rehydrate(again).compute(), 2 * np.concatenate([block(n) for n in range(16)]))
        by_store = [[s.stores[p.holders[0]].id for p in s.partitions] for s in (m, again)]
        assert by_store[0] == by_store[1]
        assert reads.fetched == 0

    def test_others_restrictions_are_left_alone(self, four, saved):
        """Who says where a read has to run gets that: the files come from peers."""
        m = saved(array, da.concatenate, "array")
        [address] = four.addresses(1)
        with four.client.as_current(), Counting(four) as reads:
            future = four.client.compute(cs.rehydrate(m).sum(), workers=[address])
            assert future.result() == pytest.approx(sum(block(n).sum() for n in range(16)))
        assert (reads.local, reads.fetched) == (4, 12)
        assert reads.served >= 12

    def test_only_the_columns_that_are_used_are_fetched(self, four, saved):
        """A projection reaches the peer: it is asked for the blocks of those columns, and for the footer."""
        [writer], [reader] = four.addresses(0), four.addresses(1)
        wide = dask.delayed(lambda: pd.DataFrame({c: np.random.default_rng(1).random(200_000) for c in "abcd"}))()
        part = dd.from_delayed([wide], meta=pd.DataFrame({c: [] for c in "abcd"}, dtype="f8"), verify_meta=False)

        def fetched(dask_worker):
            return dask_worker.plugins["ckpt-spill"].counts["fetched_bytes"]

        with four.client.as_current():
            part = four.client.persist(part, workers=[writer])
            m = cs.persist_to_disk(part, name="wide", root=str(four.root))
            before = four.client.run(fetched, workers=[reader])[reader]
            future = four.client.compute(cs.rehydrate(m).c.sum(), workers=[reader])
            assert future.result() == pytest.approx(np.random.default_rng(1).random(200_000).sum())
            after = four.client.run(fetched, workers=[reader])[reader]
        assert 0.2 < (after - before) / m.stored_nbytes < 0.3

    def test_inside_of_a_task(self, four, saved):
        """A task that computes a rehydrated collection gives its thread away, or reads by itself."""
        m = saved(array, da.concatenate, "array")

        def seceding(manifest):
            with worker_client() as client:
                return client.compute(cs.rehydrate(manifest, client=client).sum()).result()

        def alone(collection):
            return float(collection.sum().compute(scheduler="sync"))

        with four.client.as_current():
            total = pytest.approx(sum(block(n).sum() for n in range(16)))
            assert all(r == total for r in four.client.gather(four.client.map(seceding, [m] * 4, pure=False)))
            assert four.client.submit(alone, cs.rehydrate(m)).result() == total

    def test_cancelled(self, four, saved):
        """Reads that nobody wants any more are forgotten, and the next computation starts afresh."""
        m = saved(array, da.concatenate, "array")
        with four.client.as_current():
            slow = four.client.compute(cs.rehydrate(m).map_blocks(slowly, 0.5, dtype="f8", meta=block(0, 0)).sum())
            slow.cancel()
            assert cs.rehydrate(m).sum().compute() == pytest.approx(sum(block(n).sum() for n in range(16)))
            del slow
            _until(lambda: four.client.run_on_scheduler(held)[0] == 0)

    def test_computations_have_their_turns_by_priority(self, four, saved):
        """Reads of an urgent computation go before those of an earlier one, and before its queued root tasks."""
        m, other = saved(array, da.concatenate, "array"), saved(array, da.concatenate, "other")
        total = pytest.approx(sum(block(n).sum() for n in range(16)))
        with four.client.as_current():
            slow = cs.rehydrate(other).map_blocks(slowly, 0.3, dtype="f8", meta=block(0, 0)).sum()
            quick = cs.rehydrate(m).sum()
            queued = four.client.map(slowly, range(200), seconds=0.1, pure=False)
            patient = four.client.compute(slow)
            urgent = four.client.compute(quick, priority=10)
            assert urgent.result() == total
            assert patient.status == queued[-1].status == "pending"
            assert patient.result() == total


def _until(condition, seconds=20):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, condition
        time.sleep(0.05)


class TestComingBack:
    """What a rehydrated collection outlives (case C08)."""

    def test_restarts_and_other_clients(self, nodes):
        """After a restart, after a worker died and its nanny brought it back, in another client: reads are local."""
        total = pytest.approx(sum(block(n).sum() for n in range(8)))
        with nodes(2, config=NEVER_HELP | STAY) as cluster:
            back = cs.rehydrate(cs.persist_to_disk(da.concatenate(evenly(cluster, array, 2)), name="x"))
            assert back.sum().compute() == total
            cluster.client.restart()
            with Counting(cluster) as reads:
                assert back.sum().compute() == total
            assert (reads.local, reads.fetched) == (8, 0)
            cluster.kill_worker(1)
            assert back.sum().compute() == total
            cluster.wait_for(2)
            with Client(cluster.client.scheduler.address) as second, second.as_current(), Counting(cluster) as reads:
                assert pickle.loads(pickle.dumps(back)).sum().compute() == total
            assert (reads.local, reads.fetched) == (8, 0)


class TestStock:
    """Where all workers see all files, the scheduler does what it always does."""

    def test_one_machine(self, client, tmp_path):
        """On one machine nothing is held and nothing restricted: reads are queued root tasks."""
        m = cs.persist_to_disk(array(range(40)), name="x", root=str(tmp_path / "root"))
        future = client.compute(cs.rehydrate(m).map_blocks(slowly, 0.02, dtype="f8", meta=block(0, 0)).sum())
        _until(lambda: client.run_on_scheduler(lambda dask_scheduler: len(dask_scheduler.queued)) or future.done())
        assert client.run_on_scheduler(held) == (0, 0)
        assert future.result() == pytest.approx(sum(block(n).sum() for n in range(40)))

    def test_shared_directory(self, nodes):
        """The same on nodes with a shared directory; a node that does not see it joins later and takes part."""
        with nodes(2, shared=True, config={"distributed.scheduler.bandwidth": "1GB"}) as cluster:
            m = cs.persist_to_disk(array(range(40)), name="x")
            back = cs.rehydrate(m)
            assert cluster.client.run_on_scheduler(held) == (0, 0)
            assert back.sum().compute() == pytest.approx(sum(block(n).sum() for n in range(40)))
            assert counts(cluster)["fetched"] == 0


class TestHelp:
    """Workers that see nothing of what is wanted."""

    def test_help_where_it_pays(self, nodes, tmp_path):
        """Written by one node, read by four: the others fetch; a node that joins in the middle takes part."""
        enough = tmp_path / "enough"

        def slowly_until(value):
            if not enough.exists():
                time.sleep(0.3)
            return value

        def fetched(dask_worker):
            return dask_worker.plugins["ckpt-spill"].counts["fetched"]

        def by_node(i):
            return sum(cluster.client.run(fetched, workers=cluster.addresses(i)).values())

        with nodes(1) as cluster:
            m = cs.persist_to_disk(array(range(200)), name="x")
        with nodes(disks=[0, 1, 2], config={"distributed.scheduler.bandwidth": "1GB"}) as cluster:
            back = cs.rehydrate(m).map_blocks(slowly_until, dtype="f8", meta=block(0, 0))
            future = cluster.client.compute(back.sum())
            cluster.add(3)
            cluster.wait_for(4)
            _until(lambda: all(by_node(i) for i in (1, 2, 3)))
            assert future.status == "pending"
            enough.touch()
            assert future.result() == pytest.approx(sum(block(n).sum() for n in range(200)))
            assert by_node(0) == 0

    def test_no_help_where_it_does_not(self, nodes):
        """Where the network is slow the others wait, and the node that has the files does it all."""
        with nodes(1) as cluster:
            m = cs.persist_to_disk(array(range(20)), name="x")
        with nodes(disks=[0, 1], config=NEVER_HELP) as cluster:
            assert cs.rehydrate(m).sum().compute() == pytest.approx(sum(block(n).sum() for n in range(20)))
            assert counts(cluster)["fetched"] == 0

    def test_disks_of_others_mounted_here(self, nodes, tmp_path):
        """Written by four nodes, read by one that has all the disks, each at another place."""
        with nodes(4) as cluster:
            m = cs.persist_to_disk(array(range(16)), name="x")
            roots = [str(cluster.disk(i)) for i in range(4)]
        with nodes(disks=[7]) as cluster:
            back = cs.rehydrate(m, root=roots)
            assert np.array_equal(back.compute(), np.concatenate([block(n) for n in range(16)]))
            assert counts(cluster) == {"local": 16, "fetched": 0, "served": 0}


class TestConfigurations:
    """Settings of the scheduler that a queue of our own could break."""

    @pytest.mark.parametrize(
        "config",
        [
            {"distributed.scheduler.worker-saturation": "inf"},
            {"distributed.scheduler.worker-saturation": 1.0},
            {"distributed.scheduler.no-workers-timeout": "1s"},
        ],
        ids=["no queuing", "no spare tasks", "short timeout"],
    )
    def test_results_and_locality(self, nodes, config):
        """Right and local with each, also where reads wait for longer than a task may be without a worker."""
        with nodes(2, config=NEVER_HELP | STAY | config) as cluster:
            parts = evenly(cluster, array, 2, per_node=12)
            m = cs.persist_to_disk(da.concatenate(parts), name="x")
            with Counting(cluster) as reads:
                total = cs.rehydrate(m).map_blocks(slowly, 0.25, dtype="f8", meta=block(0, 0)).sum().compute()
            assert total == pytest.approx(sum(block(n).sum() for n in range(24)))
            assert (reads.local, reads.fetched) == (24, 0)

    def test_preloads(self, nodes):
        """With the plugins as preloads a collection that was made elsewhere is read well, without any call of ours."""
        with nodes(2, config=STAY) as cluster:
            m = cs.persist_to_disk(da.concatenate(evenly(cluster, array, 2)), name="x")
            content = pickle.dumps(cs.rehydrate(m).sum())
        with nodes(disks=[0, 1], preload=True, config=NEVER_HELP) as cluster:
            assert pickle.loads(content).compute() == pytest.approx(sum(block(n).sum() for n in range(8)))
            assert counts(cluster)["local"] == 8
