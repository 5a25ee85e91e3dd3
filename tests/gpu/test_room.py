"""Reading where RMM has less memory than it takes: the worker's memory makes room, as long as it has some to make."""

from __future__ import annotations

import contextlib

import dask
import pytest
from distributed import Client, LocalCluster

import ckpt_spill as cs
from tests.gpu import marks, parts
from tests.gpu.parts import PART, PARTS, each, gpu_cluster, same, tiers
from tests.spilling import keep

pytestmark = marks(120)

N = 20
POOL = N * PART // 4

RESOURCES = {
    "limit": lambda mr, n: mr.LimitingResourceAdaptor(mr.CudaMemoryResource(), allocation_limit=n),
    "pool": lambda mr, n: mr.PoolMemoryResource(mr.CudaMemoryResource(), initial_pool_size=n, maximum_pool_size=n),
}


@contextlib.contextmanager
def scarce(kind, nbytes):
    """Let this process have so many bytes of the device's memory for what is allocated meanwhile."""
    import rmm

    before = rmm.mr.get_current_device_resource()
    rmm.mr.set_current_device_resource(RESOURCES[kind](rmm.mr, nbytes))
    try:
        yield
    finally:
        rmm.mr.set_current_device_resource(before)


@pytest.fixture
def saved(root):
    def saved(make, n=N):
        with dask.config.set(scheduler="sync"):
            return cs.persist_to_disk(make(n), name="x", root=root)

    return saved


@pytest.fixture
def data(root):
    """Memory of a worker whose limits are not what is in the way."""
    return cs.device_spill(root, device_memory_limit="1 GiB", memory_limit="1 GiB")


@contextlib.contextmanager
def worker_here(data):
    """Start a worker in this process."""
    import dask_cudf  # noqa: F401  # tells dask the size of what is cuDF's

    options = {"processes": False, "threads_per_worker": 1, "dashboard_address": None}
    with LocalCluster(1, data=data, **options) as made, Client(made) as client:
        yield client


def room_was_made(client):
    found = tiers(client)
    assert 0 < found["device"] <= N // 4
    assert found["device"] + found["host"] == N


@pytest.mark.parametrize("kind", RESOURCES)
@pytest.mark.parametrize("make", PARTS, ids=lambda make: make.__name__)
def test_more_than_there_is(make, kind, saved, data):
    """Four times as much as fits is read, as what was read before goes to the host; all of it is right."""
    manifest = saved(make)
    with worker_here(data) as client:
        with scarce(kind, POOL):
            kept = keep(client, cs.rehydrate(manifest))
            room_was_made(client)
        for number, value in each(kept):
            same(value, PARTS[make](number))


def test_more_than_there_is_on_a_cluster(saved, data):
    """So it is by a worker of LocalCUDACluster with a pool of RMM's."""
    manifest = saved(parts.frames)
    with gpu_cluster(data=data, rmm_pool_size=POOL, rmm_maximum_pool_size=POOL) as client:
        kept = keep(client, cs.rehydrate(manifest))
        room_was_made(client)
        client.run(parts.lift_the_limit)
        for number, value in each(kept):
            same(value, parts.part(number))


@pytest.mark.parametrize("kind", RESOURCES)
@pytest.mark.parametrize("make", PARTS, ids=lambda make: make.__name__)
def test_no_room(make, kind, saved, data):
    """A partition that does not fit though nothing else is there is a MemoryError, and can be read when it does."""
    collection = cs.rehydrate(saved(make, 1))
    with worker_here(data) as client, scarce(kind, PART // 2), pytest.raises(MemoryError):
        client.compute(collection, sync=True)
    with scarce(kind, PART // 2), pytest.raises(MemoryError):
        collection.compute(scheduler="sync")
    same(collection.compute(scheduler="sync"), PARTS[make](0))
