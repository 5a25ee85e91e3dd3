"""dask-cuda's own cluster, whose workers' memory is on top of the store: without a GPU, so of values on the host."""

from __future__ import annotations

import os

import dask
import numpy as np
import pytest

pytest.importorskip("dask_cuda", reason="dask-cuda is not installed")

from dask_cuda import LocalCUDACluster
from dask_cuda.device_host_file import DeviceHostFile

import ckpt_spill as cs
from tests.spilling import LIMIT, keep, noise, spill_all, spilled_files
from tests.test_spill_cluster import (  # noqa: F401  # collected here, too, to run on the workers of this file
    root,
    test_changed_in_place,
    test_clean,
    test_everything_at_once,
    test_killed,
    test_link,
    test_link_of_clean,
    test_more_than_memory,
    test_restart,
)
from tests.test_spill_preload import WITHOUT_GPU, test_command_line, test_what_a_worker_leaves, worker  # noqa: F401

pytestmark = [pytest.mark.rapids, pytest.mark.slow]


@pytest.fixture
def cuda_cluster(cluster, monkeypatch):
    """A factory of clusters of dask-cuda's workers, which do without a GPU."""

    def cuda_cluster(n, **options):
        for name, value in {**WITHOUT_GPU, "CUDA_VISIBLE_DEVICES": ",".join(map(str, range(n)))}.items():
            monkeypatch.setenv(name, value)
        return cluster(n, kind=LocalCUDACluster, device_memory_limit=None, **options)

    return cuda_cluster


@pytest.fixture
def preload():
    return "ckpt_spill.spill.device"


@pytest.fixture
def spilling(cuda_cluster, root):  # noqa: F811
    """A cluster of dask-cuda's workers, which spill at 12 MiB each."""

    def spilling(n=1, **options):
        data = cs.device_spill(root, device_memory_limit=None, memory_limit=LIMIT)
        return cuda_cluster(n, data=data, **options)

    return spilling


def limits(dask_worker):
    data = dask_worker.data
    return type(data).__name__, data.host_buffer.n, getattr(data.device_buffer, "n", None)


@pytest.mark.parametrize("device", [None, "1 GB", 1 << 30])
def test_limits(cuda_cluster, root, device):  # noqa: F811
    """Without a limit of its own host memory takes that of the worker; that of the device is as given, or none."""
    client = cuda_cluster(1, data=cs.device_spill(root, device_memory_limit=device), memory_limit="2 GB")
    client.submit(int).result()
    expected = {None: None, "1 GB": 10**9, 1 << 30: 1 << 30}[device]
    assert list(client.run(limits).values()) == [("DeviceSpill", 1_200_000_000, expected)]


@pytest.mark.parametrize("device", [None, 1 << 30])
def test_preload_of_what_has_limits(cuda_cluster, root, device):  # noqa: F811
    """A worker that preloads the module keeps the limit that dask-cuda has given its memory of the device."""
    data = (DeviceHostFile, {"device_memory_limit": device, "memory_limit": 2 * 10**9})
    with dask.config.set({"ckpt-spill.root": root}):
        client = cuda_cluster(1, data=data, memory_limit="2 GB", preload=["ckpt_spill.spill.device"])
    assert client.submit(int).result() == 0
    assert list(client.run(limits).values()) == [("DeviceSpill", 1_200_000_000, device)]


def test_with_a_device_limit(cuda_cluster, root):  # noqa: F811
    """With a limit of the device, which has buffers one above the other, host values are spilled and come back."""
    data = cs.device_spill(root, device_memory_limit="1 GB", memory_limit=LIMIT)
    client = cuda_cluster(1, data=data)
    x = keep(client, noise(20))
    spill_all(client)
    assert len(spilled_files(root)) == 20
    assert np.array_equal(x.compute(), noise(20).compute(scheduler="threads"))
    client.cluster.close()
    assert os.listdir(os.path.join(root, "spill")) == []
