"""A read that lacks memory makes room for itself."""

from __future__ import annotations

import threading

import dask.array as da
import pytest
from distributed import Client, LocalCluster

import ckpt_spill as cs
from ckpt_spill.store import partition as partition_files


class Memory(dict):
    """Makes room as often as it was told to, and notes in which thread."""

    rooms, threads = 0, []

    def __init__(self, rooms):
        Memory.rooms, Memory.threads = rooms, []

    def make_room(self):
        Memory.threads.append(threading.get_ident())
        Memory.rooms -= 1
        return Memory.rooms >= 0


@pytest.fixture
def saved(tmp_path):
    return cs.persist_to_disk(da.arange(10, chunks=10), name="x", root=tmp_path / "root")


@pytest.fixture
def scarce(monkeypatch):
    """Let so many reads fail for want of memory."""
    read = partition_files.read

    def scarce(failures):
        left = [MemoryError("std::bad_alloc: out_of_memory")] * failures

        def failing(*args, **kwargs):
            if left:
                raise left.pop()
            return read(*args, **kwargs)

        monkeypatch.setattr(partition_files, "read", failing)

    return scarce


def worker_with(rooms):
    return LocalCluster(1, processes=False, dashboard_address=":0", data=(Memory, {"rooms": rooms}))


def test_read_again(saved, scarce):
    """As often as there was room to make, by the thread that has the worker's memory."""
    with worker_with(3) as cluster, Client(cluster) as client:
        x = cs.rehydrate(saved)
        loop = client.run_on_scheduler(threading.get_ident)
        scarce(3)
        assert x.sum().compute() == 45
        assert Memory.threads == [loop] * 3


def test_no_room(saved, scarce):
    """Then the error is what it was."""
    with worker_with(2) as cluster, Client(cluster):
        x = cs.rehydrate(saved)
        scarce(3)
        with pytest.raises(MemoryError, match="bad_alloc"):
            x.compute()
        assert len(Memory.threads) == 3


def test_a_coroutine_on_the_event_loop(saved, scarce):
    """Which has the memory itself, and must not wait for itself."""

    async def inside():
        return x.compute(scheduler="sync").sum()

    with worker_with(1) as cluster, Client(cluster) as client:
        x = cs.rehydrate(saved)
        scarce(1)
        assert client.submit(inside).result(timeout=30) == 45
        assert len(Memory.threads) == 1


@pytest.mark.parametrize("scheduler", ["threads", "sync"])
def test_without_a_worker(saved, scarce, scheduler):
    x = cs.rehydrate(saved)
    scarce(1)
    with pytest.raises(MemoryError, match="bad_alloc"):
        x.compute(scheduler=scheduler)
    assert x.sum().compute(scheduler=scheduler) == 45
