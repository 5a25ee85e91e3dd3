"""The spill tier under pressure: from the device to the host to the disk, and back."""

from __future__ import annotations

import gc
import glob
import os

import pytest
from dask.sizeof import sizeof

import ckpt_spill as cs
from tests.gpu import marks, parts
from tests.gpu.parts import PART, PARTS, each, gpu_cluster, same, tiers
from tests.spilling import keep, links, spill_all, spilled_files, written
from tests.test_spill_host import disk_tier

pytestmark = marks(180)

N = 40
DEVICE = N * PART // 5
MEMORY = 14 * PART  # of which dask takes 0.6: as much as on the device


@pytest.fixture
def counted():
    """Let RMM count what is allocated."""
    import rmm

    before = rmm.mr.get_current_device_resource()
    counting = rmm.mr.StatisticsResourceAdaptor(before)
    rmm.mr.set_current_device_resource(counting)
    yield lambda: counting.allocation_counts.current_bytes
    rmm.mr.set_current_device_resource(before)


@pytest.mark.parametrize("make", [parts.part, parts.text, parts.index, parts.block])
def test_all_tiers(make, root, tmp_path, counted):
    """Values of five times the limit: what is on the device keeps to it, the rest really is elsewhere; all come back
    equal, twice; figures are right; files go with the values.
    """
    import dask_cudf  # noqa: F401  # tells dask the size of what is cuDF's

    from ckpt_spill.spill.device import DeviceSpill

    size = sizeof(make(0))
    assert size >= PART // 4
    limit = N * size // 5
    tier = disk_tier(root)
    data = DeviceSpill(str(tmp_path / "worker"), tier=tier, device_memory_limit=limit, target=limit)
    gc.collect()
    before = counted()
    for number in range(N):
        data[number] = make(number)
    gc.collect()
    assert len(data) == N
    assert len(data.device_buffer.fast) == N // 5
    assert counted() - before <= limit + size
    assert 0 < data.host_buffer.fast.total_weight <= limit
    assert len(tier) >= N // 2
    assert data.spilled_total.disk == sum(map(os.path.getsize, spilled_files(root)))
    for number in [*range(N), *reversed(range(N))]:
        same(data[number], make(number))
    assert len(data) == N
    found = data.cumulative_metrics
    assert found["disk-write", "count"] >= found["disk-read", "count"] >= N // 2
    assert found["disk-write", "bytes"] > data.spilled_total.disk
    for number in range(N):
        del data[number]
    assert spilled_files(root) == []
    assert len(data) == data.spilled_total.disk == 0
    data.close()
    assert os.listdir(os.path.join(root, "spill")) == []


def keeps_to_limits(client):
    found = tiers(client)
    assert 0 < found["device"] <= N // 5
    assert found["device"] * PART <= found["device bytes"] <= DEVICE
    assert 0 < found["host bytes"] <= 0.6 * MEMORY
    assert found["disk"] >= N // 2


@pytest.mark.parametrize("make", PARTS, ids=lambda make: make.__name__)
def test_cluster(make, root):
    """A collection of five times the limit is held and right; so is a checkpoint of it, and what is read from that by
    workers that have done nothing else; nothing is left when the cluster ends.
    """
    data = cs.device_spill(root, device_memory_limit=DEVICE, memory_limit=MEMORY)
    with gpu_cluster(data=data) as client:
        kept = keep(client, make(N))
        keeps_to_limits(client)
        assert tiers(client)["disk bytes"] == sum(map(os.path.getsize, spilled_files(root)))
        assert written(client) >= tiers(client)["disk bytes"]
        for number, value in each(kept):
            same(value, PARTS[make](number))
        manifest = cs.persist_to_disk(kept, name="x", root=root)
        keeps_to_limits(client)
        assert manifest.npartitions == N
        manifest.verify()
        del kept
        client.restart()
        kept = keep(client, cs.rehydrate(manifest))
        keeps_to_limits(client)
        for number, value in each(kept):
            same(value, PARTS[make](number))
        again = cs.persist_to_disk(kept, name="y", root=root)
        again.verify()
        del kept
        for number, value in each(keep(client, cs.rehydrate(again))):
            same(value, PARTS[make](number))
    assert os.listdir(os.path.join(root, "spill")) == []


def test_with_the_spilling_of_cudf(root):
    """What cuDF moves to the host by itself is evicted to the disk on demand, is linked by a checkpoint, and right."""
    data = cs.device_spill(root, device_memory_limit=DEVICE, memory_limit=MEMORY)
    pool = {"rmm_pool_size": DEVICE, "rmm_maximum_pool_size": DEVICE}
    with gpu_cluster(data=data, enable_cudf_spill=True, **pool) as client:
        kept = keep(client, parts.frames(N))
        found = tiers(client)
        assert (found["managed by cudf"], found["device"], found["disk"]) == (N, 0, 0)
        ((moved, managed),) = client.run(parts.moved_by_cudf).values()
        assert managed >= N * PART
        assert managed - DEVICE <= moved < managed
        spill_all(client)
        found = tiers(client)
        assert (found["managed by cudf"], found["disk"]) == (0, N)
        before = written(client)
        manifest = cs.persist_to_disk(kept, name="x", root=root)
        assert written(client) == before
        assert links(manifest, root) == [2] * N
        manifest.verify()
        for number, value in each(kept):
            same(value, parts.part(number))
        del kept
        for number, value in each(keep(client, cs.rehydrate(manifest))):
            same(value, parts.part(number))
    assert os.listdir(os.path.join(root, "spill")) == []
    assert len(glob.glob(os.path.join(root, "**", "*.part"), recursive=True)) == N
