"""Reads from nodes that go away, stop, or have lost their files: another copy, or one error with a name; no hang."""

from __future__ import annotations

import os
import random
import time

import dask
import dask.array as da
import pytest

import ckpt_spill as cs
from tests.lasting import Lasting
from tests.test_locality import STAY, array, block, counts, evenly, slowly

pytestmark = pytest.mark.slow

PATIENCE = {"ckpt-spill.patience": "3s"}
FAST = {"distributed.scheduler.bandwidth": "1GB"}
SECONDS = 30
ROUNDS = int(os.environ.get("CKPT_SPILL_TEST_ROUNDS", "2"))


@pytest.fixture(autouse=True)
def little_patience():
    """Of the client; of the scheduler it is in the configuration of the nodes."""
    with dask.config.set({"ckpt-spill.patience": "1s"}):
        yield


@pytest.fixture(scope="module")
def lasting(tmp_path_factory):
    with Lasting(3, tmp_path_factory.mktemp("lasting"), config=STAY | PATIENCE) as lasting:
        yield lasting


@pytest.fixture
def three(lasting):
    """Three nodes of which one waits for no more than three seconds for another."""
    with lasting.lent() as nodes:
        yield nodes


def slow_sum(collection, seconds=0.1):
    return collection.map_blocks(slowly, seconds, dtype="f8", meta=block(0, 0)).sum()


def slow_sum_until(collection, gate, held):
    """The same, which takes up the partitions that are held only when the gate is open."""

    def slowly_until(value, block_id):
        while block_id[0] in held and not gate.exists():
            time.sleep(0.01)
        return slowly(value)

    return collection.map_blocks(slowly_until, dtype="f8", meta=block(0, 0)).sum()


def total(n):
    return pytest.approx(sum(block(k).sum() for k in range(n)))


def save(cluster, n=3, per_node=8, **options):
    return cs.persist_to_disk(da.concatenate(evenly(cluster, array, n, per_node=per_node)), name="x", **options)


def lost(m, host):
    """Partitions of a manifest that only one host has."""
    return [n for n, p in enumerate(m.partitions) if {m.stores[h].host for h in p.holders} == {host}]


class TestOneCopy:
    """Without replicas."""

    def test_a_node_that_is_killed_is_named(self, three, tmp_path):
        """Killed at random moments of the read: the error says which partitions, where they were, and comes in time."""
        m = save(three)
        back = cs.rehydrate(m)
        last = {max(lost(m, f"node{i}")) for i in range(3)}
        for turn in range(ROUNDS):
            i, gate = 1 + turn % 2, tmp_path / f"gate-{turn}"
            future = three.client.compute(slow_sum_until(back, gate, last))
            time.sleep(random.uniform(0, 1))  # of the 0.8 that the others take
            start = time.monotonic()
            three.kill_node(i)
            gate.touch()
            with pytest.raises(cs.MissingPartitionError, match=f"on host node{i}") as caught:
                future.result(SECONDS)
            assert time.monotonic() - start < SECONDS
            assert set(caught.value.partitions) <= set(lost(m, f"node{i}"))
            assert f"of 24 wanted partitions {len(caught.value.partitions)} cannot be read" in str(caught.value)
            future.release()  # as dask remembers a failure for as long as somebody has a future of it
            with pytest.raises(cs.MissingPartitionError, match=f"node{i}"):
                cs.rehydrate(m)
            three.add(i)
            three.wait_for(3)
        assert back.sum().compute() == total(24)

    def test_all_that_is_lost_is_in_one_error(self, three):
        """Nothing is read yet when the node goes: one error has all its partitions."""
        m = save(three, 2)
        back = cs.rehydrate(m)
        three.kill_node(1, wipe=True)
        with pytest.raises(cs.MissingPartitionError, match="of 16 wanted partitions 8 cannot be read") as caught:
            back.sum().compute()
        assert caught.value.partitions == lost(m, "node1")

    def test_a_disk_that_is_wiped_under_a_living_worker(self, three):
        """The store is gone, the worker that announced it is not."""
        m = save(three, 2)
        back = cs.rehydrate(m)
        three.wipe(0)
        with pytest.raises(cs.MissingPartitionError, match="on host node0"):
            back.sum().compute()

    def test_files_that_are_gone_or_damaged(self, three):
        """The store is there, files are not as they were: seen by the worker itself and by one that fetches."""
        m = save(three, 2)
        back = cs.rehydrate(m)
        [gone, damaged, *_] = sorted(three.disk(0).rglob("*.part"))
        gone.unlink()
        content = bytearray(damaged.read_bytes())
        content[len(content) // 2] ^= 1
        damaged.write_bytes(content)
        numbers = [int(path.name.split("-")[0]) for path in (gone, damaged)]
        for address in three.addresses(0) + three.addresses(1):
            for number, error in zip(numbers, (cs.MissingPartitionError, cs.CorruptPartitionError), strict=True):
                with pytest.raises(error, match=f"partition {number} "):
                    three.client.compute(back.blocks[number], workers=[address]).result(SECONDS)

    def test_a_worker_that_comes_back_in_time(self, nodes):
        """A node that is away for less than the patience costs time and nothing else."""
        with nodes(2, config=STAY | {"ckpt-spill.patience": "60s"}) as cluster:
            m = save(cluster, 2)
            back = cs.rehydrate(m)
            cluster.kill_node(1)
            future = cluster.client.compute(back.sum())
            cluster.add(1)
            assert future.result(SECONDS * 2) == total(16)

    def test_a_worker_that_its_nanny_restarts(self, three):
        """What looks for the files meanwhile waits for it: nothing is lost, by manifest, by name or when checked."""
        with dask.config.set({"ckpt-spill.patience": "60s"}):
            m = save(three, 2)
            for call in (lambda: cs.rehydrate(m), lambda: cs.rehydrate("x"), m.verify):
                three.kill_worker(1)
                call()
            assert cs.rehydrate(m).sum().compute() == total(16)

    def test_a_bound_read_waits_for_the_worker_that_has_the_file(self, nodes):
        """A read that has to run on a worker without the file outlasts a restart of the only one that has it."""
        with nodes(2, config=STAY | {"ckpt-spill.patience": "30s"}) as cluster:
            back = cs.rehydrate(save(cluster, 1))
            cluster.kill_worker(0)
            future = cluster.client.compute(back.sum(), workers=cluster.addresses(1))
            assert future.result(SECONDS) == total(8)

    def test_retired_and_scaled_down(self, three):
        """A worker that leaves in good order takes its files out of reach (case B16): named, and not removed."""
        m = save(three)
        back = cs.rehydrate(m)
        future = three.client.compute(slow_sum(back))
        three.client.retire_workers(three.addresses(2))
        with pytest.raises(cs.MissingPartitionError, match="on host node2"):
            future.result(SECONDS)
        with pytest.raises(cs.MissingPartitionError, match="on host node2"):
            cs.rehydrate(m)
        assert len(list(three.disk(2).rglob("*.part"))) == 8

    def test_no_worker_at_all(self, nodes):
        """Reads wait for the first worker, as other tasks do, and longer than the patience."""
        with nodes(1, config=PATIENCE) as cluster:
            m = save(cluster, 1)
            back = cs.rehydrate(m)
            cluster.kill_node(0)
            future = cluster.client.compute(back.sum())
            time.sleep(5)
            assert future.status == "pending"
            cluster.add(0)
            assert future.result(SECONDS) == total(8)


class TestTwoCopies:
    """With ``replicas=2`` any one node may go, at any moment. ``CKPT_SPILL_TEST_ROUNDS`` says how often it is tried."""

    def test_a_node_that_is_killed_or_wiped_during_the_read(self, three):
        """The right answer every time; then the node comes back, with an empty disk or its own, and is repaired."""
        m = save(three, replicas=2)
        for turn in range(ROUNDS):
            back = cs.rehydrate(m)
            i, moment, wipe = turn % 3, random.uniform(0, 1.2), turn % 2 == 0
            future = three.client.compute(slow_sum(back))
            time.sleep(moment)
            three.kill_node(i, wipe=wipe)
            assert future.result(2 * SECONDS) == total(24), (i, moment, wipe)
            future.release()
            three.add(i)
            three.wait_for(3)
            m = m.repair()

    def test_a_disk_that_is_wiped_before_or_during_the_read(self, three):
        """The node lives and has lost its files; reads that were meant for it go to the other copies."""
        m = save(three, replicas=2)
        for turn in range(ROUNDS):
            back, i = cs.rehydrate(m), (turn + 1) % 3
            three.wipe(i)
            assert back.sum().compute() == total(24)
            assert cs.rehydrate("x").sum().compute() == total(24)
            m = m.repair()
            future = three.client.compute(slow_sum(cs.rehydrate(m)))
            time.sleep(random.uniform(0, 1.2))
            three.wipe(i)
            assert future.result(2 * SECONDS) == total(24)
            m = m.repair()

    def test_scaled_down_and_stopped(self, nodes):
        """Retirement in the middle loses nothing that has a copy; nor does a worker that hangs, once it is removed."""
        with nodes(3, config=STAY | PATIENCE | {"distributed.scheduler.worker-ttl": "10s"}) as cluster:
            back = cs.rehydrate(save(cluster, replicas=2))
            future = cluster.client.compute(slow_sum(back))
            cluster.client.retire_workers(cluster.addresses(0))
            assert future.result(2 * SECONDS) == total(24)
            future.release()
            cluster.kill_node(0)  # its worker and nanny have ended
            cluster.add(0)
            cluster.wait_for(3)
            future = cluster.client.compute(slow_sum(back))
            cluster.stop_worker(1)
            assert future.result(3 * SECONDS) == total(24)

    def test_a_damaged_copy(self, nodes, caplog):
        """The other copy is read, from a peer where it has to be, and the damage is in the log of the worker."""
        with nodes(2, config=STAY) as cluster:
            m = save(cluster, 2, replicas=2)
            back = cs.rehydrate(m)
            for path in cluster.disk(0).rglob("*.part"):
                content = bytearray(path.read_bytes())
                content[len(content) // 2] ^= 1
                path.write_bytes(content)
            [address] = cluster.addresses(0)
            assert cluster.client.compute(back.sum(), workers=[address]).result(SECONDS) == total(16)
            assert "cannot be used" in cluster.log(0)
            assert counts(cluster)["fetched"] == 16


class TestPeersThatDoNotAnswer:
    """A slow or stopped peer is no lost one."""

    def test_a_stopped_worker(self, nodes):
        """A fetch from a worker that was stopped goes back to wait; when it goes on, so does everything."""
        with nodes(1) as cluster:
            m = save(cluster, 1, per_node=40)
        with nodes(disks=[0, 1], config=FAST | PATIENCE) as cluster:
            back = cs.rehydrate(m)
            future = cluster.client.compute(slow_sum(back, 0.3))
            deadline = time.monotonic() + SECONDS
            while not counts(cluster)["fetched"]:
                assert time.monotonic() < deadline
            [stopped] = cluster.addresses(0)
            cluster.stop_worker(0)
            cluster.wait_until(lambda: f"worker {stopped} does not answer" in cluster.log(1), "a fetch to be given up")
            assert future.status == "pending"
            cluster.continue_worker(0)
            assert future.result(2 * SECONDS) == total(40)
