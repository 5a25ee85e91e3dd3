"""Workers and nodes that are lost, or stand still, while a collection is saved or looked for."""

from __future__ import annotations

import functools
import os
import signal
import socket
import threading
import time
from collections import Counter
from pathlib import Path

import dask
import dask.array as da
import numpy as np
import pandas as pd
import pytest
from dask.dataframe import from_map

import ckpt_spill as cs
from ckpt_spill import hosts
from ckpt_spill.here import this_worker
from ckpt_spill.hosts import HostLostError, Workers
from tests.lasting import Lasting
from tests.test_resume import wait_for

pytestmark = pytest.mark.slow

N = 16


@pytest.fixture(autouse=True)
def little_patience():
    with dask.config.set({"ckpt-spill.patience": "1s"}):
        yield


def note(directory, what):
    """Note on disk, from whatever process, where something ran."""
    Path(directory, f"{what}-{socket.gethostname()}-{os.urandom(8).hex()}").touch()


def part(i, directory):
    """Make a partition; the last one not before somebody says so."""
    note(directory, i)
    while i >= N - 1 and not Path(directory, "go").exists():
        time.sleep(0.01)
    return pd.DataFrame({"i": np.full(100, i), "r": np.random.default_rng(i).random(100)})


def source(directory):
    return from_map(part, range(N), directory=str(directory), meta={"i": int, "r": float})


def runs(directory):
    """Where each partition was made: a Counter of partition and host."""
    names = [name.split("-") for name in os.listdir(directory) if name.count("-") == 2]
    return Counter((int(i), host) for i, host, _ in names)


def expected(tmp_path):
    directory = tmp_path / "expected"
    directory.mkdir()
    (directory / "go").touch()
    return source(directory).compute(scheduler="synchronous")


def part_files(nodes, i):
    return [path.name for path in nodes.disk(i).rglob("*.part")]


def saving(directory, **options):
    """Save in a thread; give the thread and the list that gets the result."""
    result = []
    thread = threading.Thread(target=lambda: result.append(cs.persist_to_disk(source(directory), name="x", **options)))
    thread.start()
    return thread, result


# ------------------------------------------------------------------------------------------------------------- asking
def sleep_and_die(seconds):
    time.sleep(seconds)
    os.kill(os.getpid(), signal.SIGKILL)


def where(*_):
    return this_worker().address


def fail(error):
    raise error


def fail_unpickleably():
    class LocalError(Exception):
        pass

    raise LocalError("this cannot be pickled")


class TestAsking:
    def test_what_a_function_raises(self, client):
        """Our errors come as they are, others with the worker and the function; neither is a lost worker."""
        address = next(iter(client.nthreads()))
        for ask in (lambda f, *a: Workers(client).at(f, [(address, a)]), Workers(client).each):
            with pytest.raises(cs.DiskFullError, match="no room") as e:
                ask(fail, cs.DiskFullError("no room", needed=5))
            assert e.value.needed == 5
            with pytest.raises(cs.CkptSpillError, match="failed in 'fail': OSError") as e:
                ask(fail, OSError(5, "the disk is tired"))
            assert type(e.value) is cs.CkptSpillError
            with pytest.raises(cs.CkptSpillError, match=r"failed in 'fail_unpickleably'.*LocalError"):
                ask(fail_unpickleably)

    def test_order(self, client):
        """Results come in the order of the calls, also when several go to one worker."""
        first, second = client.nthreads()
        calls = [(address, (n,)) for n, address in enumerate([first, second, second, first])]
        assert Workers(client).at(where, calls) == [first, second, second, first]
        assert Workers(client).at(where, []) == []
        assert set(Workers(client).each(where).values()) == {first, second}

    def test_lost(self, cluster):
        """A worker that dies in the middle is left out of a survey, and is a named error where it was meant."""
        client = cluster(3)
        asked = Workers(client)
        first, second, third = sorted(client.nthreads())
        results = asked.attempt(sleep_and_die_on, [(a, (first,)) for a in (first, second)])
        assert isinstance(results[0], HostLostError)
        assert (results[0].address, results[1]) == (first, second)
        with pytest.raises(HostLostError, match=f"worker {second} was lost before it answered"):
            asked.at(sleep_and_die_on, [(second, (second,)), (third, (second,))])
        answers = asked.each(sleep_and_die_on, third)
        assert third not in answers
        assert all(address == answer for address, answer in answers.items())

    def test_gone_before(self, client):
        """So is one that nobody knows any more, at once."""
        start = time.monotonic()
        with pytest.raises(HostLostError):
            Workers(client).at(where, [("tcp://127.0.0.1:9", ())])
        assert time.monotonic() - start < 15  # dask itself tries for 30 seconds

    def test_standing_still(self, cluster, tmp_path, monkeypatch):
        """A worker that is stopped is None in a survey, and not waited for again; it is named where it is needed."""
        client = cluster(2)
        cs.persist_to_disk(da.arange(10, chunks=5), name="x", root=tmp_path / "root")
        monkeypatch.setattr(hosts, "_SILENCE", 5)
        first, second = client.nthreads()
        pid = client.run(os.getpid, workers=[first])[first]
        os.kill(pid, signal.SIGSTOP)
        try:
            asked = Workers(client)
            for _ in range(2):
                assert asked.each(where) == {first: None, second: second}
            cs.rehydrate("x", root=tmp_path / "root")
            with pytest.raises(cs.RootError, match=f"{first}: this worker does not answer"):
                cs.persist_to_disk(da.ones(3), name="y", root=tmp_path / "root")
        finally:
            os.kill(pid, signal.SIGCONT)
        assert asked.each(where) == {first: first, second: second}


def sleep_and_die_on(address):
    if where() == address:
        sleep_and_die(0.2)
    return where()


# -------------------------------------------------------------------------------------------------------------- nodes
@pytest.fixture(scope="module")
def lasting(tmp_path_factory):
    with Lasting(3, tmp_path_factory.mktemp("lasting"), preload=True) as lasting:
        yield lasting


@pytest.fixture
def three(lasting):
    """Three nodes, which have the plugins from the start."""
    with lasting.lent() as nodes:
        yield nodes


@pytest.mark.slow
@pytest.mark.parametrize("wipe", [True, False])
def test_node_lost_while_writing(three, notes, tmp_path, wipe):
    """A node that dies while the others write costs what it had written, and what it was at; no more."""
    thread, result = saving(notes)
    wait_for(lambda: sum(len(part_files(three, i)) for i in range(3)) >= N - 3 and part_files(three, 1))
    three.kill_node(1, wipe=wipe)
    (notes / "go").touch()
    thread.join()
    (m,) = result
    m.verify()
    made = runs(notes)
    assert [sum(made[i, f"node{n}"] for n in (0, 2)) for i in range(N)] == [1] * N
    pd.testing.assert_frame_equal(cs.rehydrate(m).compute(), expected(tmp_path))
    comes_back(three, 1, m)


def comes_back(nodes, i, m):
    """A node comes back with whatever it had: that harms nothing, and is removed with the rest."""
    nodes.add(i)
    nodes.wait_for(3)
    assert cs.list_checkpoints() == [m]
    m.verify()
    assert cs.rehydrate("x").i.sum().compute() == 100 * sum(range(N))
    m.delete()
    assert cs.list_checkpoints() == []
    assert not any(part_files(nodes, i) for i in range(3))


def states(dask_scheduler):
    """States of the tasks that the client still waits for."""
    return [task.state for task in dask_scheduler.tasks.values()]


@pytest.mark.slow
def test_node_comes_back_in_time(three, notes, tmp_path):
    """A node that is there again before the patience ends has lost nothing that it had written."""
    with dask.config.set({"ckpt-spill.patience": "60s"}):
        thread, result = saving(notes)
        wait_for(lambda: three.client.run_on_scheduler(states) == ["processing"])
        three.kill_node(1)
        kept = {int(name.split("-")[0]) for name in part_files(three, 1)}
        (notes / "go").touch()
        wait_for(lambda: sum(len(part_files(three, i)) for i in range(3)) >= N)
        three.add(1)
        thread.join()
    (m,) = result
    m.verify()
    made = runs(notes)
    assert all(sum(made[i, f"node{n}"] for n in range(3)) == 1 for i in kept)
    assert len(m.stores) == 3
    pd.testing.assert_frame_equal(cs.rehydrate(m).compute(), expected(tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("errand", "time_of_call", "after"),
    [
        ("begin", 0, False),
        ("seal", 0, False),
        ("seal", 0, True),
        ("commit", 0, False),  # on the store where all runs meet
        ("commit", 0, True),
        ("commit", 1, False),  # on another one
        ("commit", 1, True),
        ("sweep", 0, False),
    ],
)
def test_node_lost_at_an_errand(three, notes, tmp_path, monkeypatch, errand, time_of_call, after):
    """A node that dies before or after it does its part of the commit costs its partitions; the rest is committed."""
    (notes / "go").touch()
    lost = kill_at(three, monkeypatch, notes, errand, time_of_call, after=after)
    m = cs.persist_to_disk(source(notes), name="x")
    (gone,) = lost
    made = runs(notes)
    elsewhere = [sum(made[i, f"node{n}"] for n in range(3) if n != gone) for i in range(N)]
    if errand == "sweep":  # it was committed: then its partitions are lost as in any other node
        assert max(elsewhere) <= 1
    else:
        assert elsewhere == [1] * N
        m.verify()
        pd.testing.assert_frame_equal(cs.rehydrate("x").compute(), expected(tmp_path))
        assert m.revision == (errand in ("seal", "commit"))
    comes_back(three, gone, m)


def kill_at(nodes, monkeypatch, notes, errand, time_of_call, *, after):
    """Kill the node that is the first to be asked for an errand, while it is at it; the list will have its number."""
    lost = []
    calls = iter(range(1000))
    real = Workers.attempt

    def attempt(self, function, asked):
        if function.__name__ != errand or next(calls) != time_of_call:
            return real(self, function, asked)
        victim = asked[0][0]
        lost.extend(i for i in range(3) if victim in nodes.addresses(i))
        killer = threading.Thread(target=lambda: (wait_for((notes / "there").exists), nodes.kill_node(lost[0])))
        killer.start()
        try:
            return real(
                self, functools.wraps(function)(functools.partial(stuck, function, victim, after, notes)), asked
            )
        finally:
            killer.join()

    monkeypatch.setattr(Workers, "attempt", attempt)
    return lost


def stuck(function, victim, after, notes, *args):
    """Run an errand; the victim gets stuck before or after it."""
    result = function(*args) if after or where() != victim else None
    if where() == victim:
        (notes / "there").touch()
        time.sleep(600)
    return result


@pytest.mark.slow
def test_shuffled(three, notes, tmp_path, monkeypatch):
    """What a p2p shuffle had put on a lost node is shuffled again."""
    (notes / "go").touch()
    shuffled = source(notes).shuffle("i", shuffle_method="p2p")
    kill_at(three, monkeypatch, notes, "seal", 0, after=False)
    m = cs.persist_to_disk(shuffled, name="x")
    m.verify()
    got, frame = cs.rehydrate(m).compute(), expected(tmp_path)
    by = ["i", "r"]
    pd.testing.assert_frame_equal(
        got.sort_values(by).reset_index(drop=True), frame.sort_values(by).reset_index(drop=True)
    )


@pytest.mark.slow
def test_mended_after_a_node_is_lost(three, notes, tmp_path):
    """A node lost afterwards: the error says all, recompute makes what it had; it comes back with the old revision."""
    (notes / "go").touch()
    m = cs.persist_to_disk(source(notes), name="x")
    before = runs(notes)
    three.kill_node(2)
    gone = sorted(int(name.split("-")[0]) for name in part_files(three, 2))
    assert gone
    with pytest.raises(cs.MissingPartitionError) as e:
        cs.rehydrate("x")
    (store,) = (ref for ref in m.stores if ref.host == "node2")
    assert (e.value.partitions, e.value.stores) == (gone, [store.id])
    for said in (f"{N - len(gone)} of {N} partitions present", store.id, store.root, "node2"):
        assert said in str(e.value)
    back = cs.rehydrate(m, missing="recompute", source=source(notes))
    assert sorted(i for i, _ in (runs(notes) - before).elements()) == gone
    pd.testing.assert_frame_equal(back.compute(), expected(tmp_path))
    (mended,) = cs.list_checkpoints()
    assert (mended.run, mended.revision) == (m.run, 1)
    comes_back(three, 2, mended)
